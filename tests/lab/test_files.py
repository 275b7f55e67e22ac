"""Files of runs: whole or as before, damaged ones named, nested data back as it was, nothing unpickled."""

import math
import os
import pickle
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inface.atomic import remove_partial
from inface.lab import LabError, Run
from inface.lab.files import read_json, read_lines, read_tensors, replacing, write_json, write_tensors, write_text
from inface.lab.runs import checkpoint as plain


def names(folder):
    return sorted(file.name for file in folder.iterdir())


# ---------------------------------------------------------------------- writing


def test_an_exception_while_writing_leaves_the_old_file_and_no_litter(tmp_path):
    path = tmp_path / "numbers.txt"
    write_text(path, "old")

    def write():
        with replacing(path) as partial:
            partial.write_text("half of the n")
            raise OSError("the disk is full")

    with pytest.raises(LabError, match=r"numbers.txt: cannot be written: the disk is full"):
        write()
    assert path.read_text() == "old"
    assert names(tmp_path) == ["numbers.txt"]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_an_interruption_while_writing_leaves_no_file_where_there_was_none(tmp_path, interruption):
    def write():
        with replacing(tmp_path / "numbers.txt") as partial:
            partial.write_text("half")
            raise interruption

    with pytest.raises(interruption):
        write()
    assert names(tmp_path) == []


def test_what_cannot_be_written_leaves_the_old_file(tmp_path):
    write_json(tmp_path / "a.json", {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"a": math.nan})
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"a": torch.zeros(1)})
    plain.save(tmp_path / "b", {"a": 1})
    with pytest.raises(TypeError, match="wanted plain data or a tensor, got object"):
        plain.save(tmp_path / "b", {"a": object()})
    assert read_json(tmp_path / "a.json") == {"a": 1}
    assert plain.load(tmp_path / "b") == {"a": 1}
    assert names(tmp_path) == ["a.json", "b"]


def test_the_old_file_is_there_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "numbers.txt"
    write_text(path, "old")
    with replacing(path) as partial:
        partial.write_text("new")
        assert path.read_text() == "old"
        assert partial.stat().st_dev == path.stat().st_dev
    assert path.read_text() == "new"


def test_a_file_may_be_read_by_whom_the_umask_lets_read_it(tmp_path):
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "a", "text")
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_folders_on_the_way_to_a_file_are_made(tmp_path):
    write_json(tmp_path / "a" / "b" / "c.json", {"a": [1, 2.5, None, "é"]})
    assert read_json(tmp_path / "a" / "b" / "c.json") == {"a": [1, 2.5, None, "é"]}


def test_tensors_that_share_memory_or_lie_across_it_come_back_as_they_were(tmp_path):
    base = torch.arange(6.0).reshape(2, 3)
    tensors = {"a": base, "again": base, "across": base.T, "part": base[1], "b": torch.ones(2)}
    write_tensors(tmp_path / "a", tensors)
    found, _ = read_tensors(tmp_path / "a")
    assert {name: value.tolist() for name, value in found.items()} == {k: v.tolist() for k, v in tensors.items()}


def test_a_file_is_renamed_when_it_is_on_the_disk_and_then_its_folder_is_flushed(tmp_path, monkeypatch):
    seen, fsync, replace, folder = [], os.fsync, os.replace, Path("/proc/self/fd")
    monkeypatch.setattr(os, "fsync", lambda handle: (seen.append((folder / str(handle)).readlink()), fsync(handle)))
    monkeypatch.setattr(os, "replace", lambda old, new: (seen.append(Path("replace")), replace(old, new)))
    write_text(tmp_path / "a", "text")
    assert [place.name for place in seen] == ["a", "replace", tmp_path.name]
    assert seen[2] == tmp_path


def test_only_what_killed_writes_of_that_file_left_is_removed(tmp_path):
    for name in (".a.json.0a1b2c3d.part", ".b.json.0a1b2c3d.part", "a.json.0a1b2c3d.part", ".a.json.part"):
        (tmp_path / name).mkdir()
    (tmp_path / ".a.json.3d2c1b0a.part").write_text("half")
    (tmp_path / ".a.json.3d2c1b0b.part").symlink_to(tmp_path / ".b.json.0a1b2c3d.part")
    remove_partial(tmp_path, "a.json")
    assert names(tmp_path) == [
        ".a.json.3d2c1b0b.part",
        ".a.json.part",
        ".b.json.0a1b2c3d.part",
        "a.json.0a1b2c3d.part",
    ]


# ---------------------------------------------------------------------- reading what is damaged


@pytest.mark.parametrize(
    ("contents", "reason"),
    [
        (b"", "is not JSON"),
        (b'{"format": 1, "exp', "is not JSON"),
        (b"\xff\xfe\x00", "is not JSON"),
        (b"\x00" * 100, "is not JSON"),
        (b"[1, 2]", "wanted a JSON object, got list"),
        (b"3", "wanted a JSON object, got int"),
    ],
)
def test_a_damaged_json_file_is_named(tmp_path, contents, reason):
    path = tmp_path / "config.json"
    path.write_bytes(contents)
    with pytest.raises(LabError) as error:
        read_json(path)
    assert str(error.value).startswith(f"{path}: {reason}")
    assert error.value.exit_code == 1
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("read", [read_json, read_lines, read_tensors, plain.load])
def test_a_file_that_is_not_there_or_a_folder_is_named(tmp_path, read):
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(LabError, match=str(path)):
            read(path)


def test_a_line_cut_off_at_the_end_does_not_count(tmp_path):
    path = tmp_path / "metrics.jsonl"
    whole = b'{"step": 2}\n{"step": 4}\n'
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        assert read_lines(path) == [{"step": 2}, {"step": 4}][: whole[:cut].count(b"\n")]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"step": ', "line 2 is not JSON"),
        (b"", "line 2 is not JSON"),
        (b"[4]", "line 2: wanted a JSON object, got list"),
        (b"\xff", "line 2 is not UTF-8 text"),
    ],
)
def test_a_damaged_line_is_named_with_its_number(tmp_path, line, reason):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 2}\n' + line + b'\n{"step": 6}\n')
    with pytest.raises(LabError) as error:
        read_lines(path)
    assert str(error.value).startswith(f"{path}: {reason}")


@settings(max_examples=60)
@given(st.data())
def test_any_damage_to_a_tensor_file_that_is_noticed_is_named(data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.safetensors")
        write_tensors(path, {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2, dtype=torch.long)}, {"data": "1"})
        whole = path.read_bytes()
        kind = data.draw(st.sampled_from(["cut", "header", "garbage"]))
        if kind == "cut":
            damaged = whole[: data.draw(st.integers(0, len(whole) - 1))]
        elif kind == "header":
            place = data.draw(st.integers(0, 7))  # the length of the header
            damaged = whole[:place] + bytes([whole[place] ^ data.draw(st.integers(1, 255))]) + whole[place + 1 :]
        else:
            damaged = data.draw(st.binary(max_size=64))
        path.write_bytes(damaged)
        for read in (read_tensors, plain.load):
            with pytest.raises(LabError, match=r"model.safetensors") as error:
                read(path)
            assert len(str(error.value).splitlines()) == 1


def test_a_tensor_file_without_nested_data_is_no_checkpoint(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    for metadata in (None, {"data": "not json"}, {"data": '["tensor", "7"]'}, {"data": '["pickle", 1]'}):
        write_tensors(path, {"0": torch.zeros(1)}, metadata)
        with pytest.raises(LabError, match=f"{path}: is not a checkpoint"):
            plain.load(path)


# ---------------------------------------------------------------------- nothing is unpickled


class Trap:
    """An object whose unpickling would leave a trace."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return (Path.write_text, (self.trace, "unpickled"))


def test_a_pickle_in_place_of_a_checkpoint_or_a_model_is_refused_and_never_run(tmp_path):
    trace = tmp_path / "trace"
    write_json(tmp_path / "config.json", {"format": 1, "experiment": "digits"})
    run = Run(tmp_path)
    pickled = pickle.dumps(Trap(trace))
    torch.save({"model": Trap(trace)}, tmp_path / "zipped")
    for contents in (pickled, (tmp_path / "zipped").read_bytes()):
        run.checkpoint_file.write_bytes(contents)
        run.model_file.write_bytes(contents)
        with pytest.raises(LabError, match=r"checkpoint.safetensors: is not a safetensors file"):
            plain.load(run.checkpoint_file)
        with pytest.raises(LabError, match=r"model.safetensors: is not a safetensors file"):
            run.weights()
    assert not trace.exists()
    pickle.loads(pickled)  # noqa: S301 - the trap itself: it does spring
    assert trace.exists()


# ---------------------------------------------------------------------- nested data

numbers = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
keys = st.integers() | st.text()
dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    values = torch.randn(shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99)))) * 3
    tensor = (values.abs() if (dtype := draw(st.sampled_from(dtypes))) == torch.uint8 else values).to(dtype)
    return tensor.t() if tensor.ndim == 2 else tensor


nested = st.recursive(
    numbers | tensors(),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


def same(saved, loaded):
    if isinstance(saved, torch.Tensor):
        return saved.dtype == loaded.dtype and saved.shape == loaded.shape and bool((saved == loaded).all())
    if isinstance(saved, dict):
        return list(saved) == list(loaded) and all(same(value, loaded[key]) for key, value in saved.items())
    if isinstance(saved, list | tuple):
        return isinstance(loaded, list) and len(saved) == len(loaded) and all(map(same, saved, loaded))
    if isinstance(saved, float) and math.isnan(saved):
        return math.isnan(loaded)
    return type(saved) is type(loaded) and saved == loaded


@settings(max_examples=150)
@given(nested)
def test_nested_data_comes_back_as_it_was(data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "state")
        plain.save(path, data)
        assert same(data, plain.load(path))
        assert names(Path(folder)) == ["state"]


def test_tensors_that_share_memory_come_back_each_by_itself(tmp_path):
    whole = torch.arange(6.0)
    plain.save(tmp_path / "state", {"whole": whole, "part": whole[:3], "again": whole, "grad": whole.requires_grad_()})
    loaded = plain.load(tmp_path / "state")
    loaded["whole"].zero_()
    assert loaded["part"].tolist() == [0, 1, 2]
    assert loaded["again"].tolist() == whole.tolist()


def test_a_run_of_another_format_is_named(tmp_path):
    write_json(tmp_path / "config.json", {"format": 2, "experiment": "digits"})
    with pytest.raises(LabError, match=r"config.json: has format 2, wanted 1"):
        _ = Run(tmp_path).settings


@pytest.mark.parametrize("setting", [{"lr": -1.0}, {"lr": "much"}, {"epoch": 3}, {"radius": 3}])
def test_a_configuration_that_makes_no_sense_is_named(tmp_path, setting):
    write_json(tmp_path / "config.json", {"format": 1, "experiment": "digits", **setting})
    with pytest.raises(LabError, match=r"config.json: "):
        _ = Run(tmp_path).settings
