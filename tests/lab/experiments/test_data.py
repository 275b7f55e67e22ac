"""Data sets: small files in the published formats, whole and damaged; the supplement's synthetic data."""

import gzip
import hashlib
import struct
import tarfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from helpers.datasets import (
    IMAGES,
    LABELS,
    TEST_LABELS,
    cifar_contents,
    idx_bytes,
    mnist_contents,
    tar_of,
    write_archive,
    write_batches,
    write_file,
    write_mnist,
)
from inface.lab import ArgumentError, LabError
from inface.lab.experiments.data import batches, check, cifar10, digits, folder, idx, mnist, status, synthetic


def refused(load, place, *wanted):
    with pytest.raises(LabError) as caught:
        load(place)
    message = str(caught.value)
    assert type(caught.value) is LabError, message
    assert "\n" not in message
    for text in wanted:
        assert str(text) in message


def same(first, second):
    return all(
        torch.equal(getattr(getattr(first, part), what), getattr(getattr(second, part), what))
        for part in ("train", "test")
        for what in ("inputs", "targets")
    )


# The folder


def test_the_folder_is_the_given_one_else_the_environments_else_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("INFACE_DATA", str(tmp_path / "environment"))
    assert folder(tmp_path / "given") == tmp_path / "given"
    assert folder() == tmp_path / "environment"
    monkeypatch.delenv("INFACE_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert folder().name == "inface"


# MNIST


@pytest.mark.parametrize("packed", [True, False])
def test_mnist_is_the_files_pixels_standardised(tmp_path, packed):
    contents = write_mnist(tmp_path, packed)
    data = mnist(tmp_path)
    pixels = torch.from_numpy(contents[IMAGES].astype(np.float64)) / 255
    assert data.train.inputs.dtype == torch.float32
    assert data.train.inputs.shape == (12, 1, 28, 28)
    torch.testing.assert_close(data.train.inputs[:, 0].double(), (pixels - 0.1307) / 0.3081, rtol=1e-5, atol=1e-6)
    assert data.train.targets.dtype == torch.int64
    assert data.test.targets.tolist() == contents[TEST_LABELS].tolist()
    assert (len(data.test), data.held_out, data.image) == (5, 2, (1, 28, 28))


def test_compressed_and_plain_files_may_be_mixed_and_load_the_same_every_time(tmp_path):
    contents = write_mnist(tmp_path)
    first = mnist(tmp_path)
    assert same(first, mnist(tmp_path))
    (tmp_path / "mnist" / f"{LABELS}.gz").unlink()
    write_file(tmp_path, LABELS, idx_bytes(contents[LABELS]), packed=False)
    assert same(first, mnist(tmp_path))


def test_one_training_image_is_enough_to_load(tmp_path):
    write_mnist(tmp_path, train=1, test=1)
    assert mnist(tmp_path).held_out == 0


@pytest.mark.parametrize("name", idx.FILES)
def test_a_missing_file_of_mnist_is_named_with_the_command_that_gets_it(tmp_path, name):
    write_mnist(tmp_path)
    (tmp_path / "mnist" / f"{name}.gz").unlink()
    with pytest.raises(LabError, match=f"{name}.gz: is missing; inface data fetch mnist"):
        mnist(tmp_path)


whole = idx_bytes(mnist_contents()[IMAGES])
DAMAGED_IMAGES = {
    "empty": (b"", "truncated"),
    "half a header": (whole[:9], "truncated: 9 bytes"),
    "only a header": (whole[:16], "truncated: 0 bytes"),
    "one byte short": (whole[:-1], "truncated: 9,407 bytes"),
    "one byte more": (whole + b"\0", "more bytes"),
    "labels": (idx_bytes(np.zeros(12, np.uint8)), "magic number 0x00000803, got 0x00000801"),
    "floats": (b"\0\0\x0d\3" + whole[4:], "magic number"),
    "of 32 by 32": (idx_bytes(np.zeros((12, 32, 32), np.uint8)), "wanted samples of 28 by 28, got 32 by 32"),
    "none": (idx_bytes(np.zeros((0, 28, 28), np.uint8)), "promises 0 samples"),
    "four billion": (whole[:4] + b"\xff" * 4 + whole[8:], "promises 4,294,967,295 samples"),
    "a million": (whole[:4] + struct.pack(">I", 10**6) + whole[8:], "truncated"),
}


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("contents", "reason"), DAMAGED_IMAGES.values(), ids=DAMAGED_IMAGES)
def test_damaged_images_are_named_with_the_reason(tmp_path, contents, reason, packed):
    write_mnist(tmp_path, packed)
    refused(mnist, tmp_path, write_file(tmp_path, IMAGES, contents, packed), reason)


def test_labels_out_of_range_and_too_few_labels_are_refused(tmp_path):
    write_mnist(tmp_path)
    path = write_file(tmp_path, LABELS, idx_bytes(np.full(12, 10, np.uint8)))
    refused(mnist, tmp_path, path, "the label 10, wanted labels from 0 to 9")
    write_file(tmp_path, LABELS, idx_bytes(np.zeros(11, np.uint8)))
    refused(mnist, tmp_path, path, "holds 11 labels, wanted 12", f"{IMAGES}.gz")


packed = gzip.compress(whole, 1)
DAMAGED_GZIP = {
    "empty": (b"", "truncated"),
    "not gzip": (whole, "not gzip"),
    "half": (packed[: len(packed) // 2], "truncated"),
    "without the checksum": (packed[:-8], "truncated"),
    "a wrong checksum": (packed[:-8] + bytes(4) + packed[-4:], "CRC"),
    "a wrong length": (packed[:-4] + bytes(4), "length"),
    "something behind it": (packed + b"rubbish", "not gzip"),
    "a second stream": (packed + gzip.compress(b"\0"), "more bytes"),
}


@pytest.mark.parametrize(("contents", "reason"), DAMAGED_GZIP.values(), ids=DAMAGED_GZIP)
def test_a_damaged_gzip_file_is_named_with_the_reason(tmp_path, contents, reason):
    write_mnist(tmp_path)
    path = tmp_path / "mnist" / f"{IMAGES}.gz"
    path.write_bytes(contents)
    refused(mnist, tmp_path, path, reason)


def test_a_bomb_is_not_decompressed_further_than_its_header_promises(tmp_path):
    write_mnist(tmp_path)
    path = write_file(tmp_path, IMAGES, whole + bytes(50 << 20))
    tracemalloc.start()
    refused(mnist, tmp_path, path, "more bytes")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 << 20


DAMAGE = st.tuples(
    st.sampled_from(["cut", "flip", "drop", "insert"]), st.floats(0, 1, exclude_max=True), st.integers(1, 255)
)


def damaged(contents, damage):
    how, where, value = damage
    at = int(where * len(contents))
    return {
        "cut": contents[:at],
        "flip": contents[:at] + bytes([contents[at] ^ value]) + contents[at + 1 :],
        "drop": contents[:at] + contents[at + 1 :],
        "insert": contents[:at] + bytes([value]) + contents[at:],
    }[how]


def loads_or_is_refused(load, place, path):
    try:
        load(place)
    except LabError as error:
        assert str(path) in str(error)  # noqa: PT017 - it may as well load
        assert "\n" not in str(error)  # noqa: PT017


@given(damage=DAMAGE, name=st.sampled_from(idx.FILES), packed=st.booleans(), inside=st.booleans())
def test_mnist_damaged_anywhere_loads_or_is_refused_by_name(tmp_path, damage, name, packed, inside):
    for old in tmp_path.glob("mnist/*"):
        old.unlink()
    contents = idx_bytes(write_mnist(tmp_path, packed, train=2, test=1)[name])
    path = write_file(tmp_path, name, damaged(contents, damage) if inside else contents, packed)
    if not inside:
        path.write_bytes(damaged(path.read_bytes(), damage))
    loads_or_is_refused(mnist, tmp_path, path)


# CIFAR-10


def test_cifar10_is_the_batches_pixels_between_minus_one_and_one(tmp_path):
    contents = cifar_contents()
    write_batches(tmp_path, contents)
    data = cifar10(tmp_path)
    third = torch.from_numpy(contents["data_batch_3.bin"].astype(np.float64))
    assert data.train.inputs.dtype == torch.float32
    assert data.train.inputs.shape == (20, 3, 32, 32)
    assert data.train.targets[8:12].tolist() == third[:, 0].tolist()
    wanted = (third[:, 1:] / 255 - 0.5) / 0.5
    torch.testing.assert_close(data.train.inputs[8:12].flatten(1).double(), wanted, rtol=1e-5, atol=1e-6)
    assert data.test.targets.tolist() == contents["test_batch.bin"][:, 0].tolist()
    assert (len(data.test), data.held_out, data.image) == (4, 4, (3, 32, 32))


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_the_archive_holds_what_the_batches_hold_and_nothing_is_extracted(tmp_path, tar_format):
    contents = cifar_contents()
    write_batches(tmp_path / "batches", contents)
    readme = tarfile.TarInfo(f"{batches.FOLDER}/readme.html")
    readme.size = 88
    write_archive(tmp_path / "archive", gzip.compress(tar_of(contents, [readme], tar_format=tar_format), 1))
    assert same(cifar10(tmp_path / "batches"), cifar10(tmp_path / "archive"))
    assert [path.name for path in (tmp_path / "archive" / "cifar10").iterdir()] == [batches.ARCHIVE]


def test_the_archive_serves_where_a_batch_is_missing(tmp_path):
    contents = cifar_contents()
    (write_batches(tmp_path, contents) / "data_batch_2.bin").unlink()
    with pytest.raises(LabError, match=r"data_batch_2.bin: is missing; inface data fetch cifar10"):
        cifar10(tmp_path)
    write_archive(tmp_path, gzip.compress(tar_of(contents), 1))
    assert len(cifar10(tmp_path).train) == 20


@pytest.mark.parametrize("records", [0, 3])
def test_a_batch_with_fewer_records_than_the_others_is_refused(tmp_path, records):
    contents = cifar_contents()
    contents["data_batch_4.bin"] = contents["data_batch_4.bin"][:records]
    refused(cifar10, tmp_path, write_batches(tmp_path, contents) / "data_batch_4.bin")
    refused(cifar10, tmp_path, "truncated" if records else "got 0 bytes")


def test_batches_of_broken_records_wrong_labels_or_absurd_size_are_refused(tmp_path, monkeypatch):
    contents = cifar_contents()
    where = write_batches(tmp_path, contents)
    path = where / "test_batch.bin"
    path.write_bytes(contents["test_batch.bin"].tobytes()[:-1])
    refused(cifar10, tmp_path, path, "multiple of 3,073 bytes", "got 12,291 bytes")
    contents["test_batch.bin"][2, 0] = 10
    write_batches(tmp_path, contents)
    refused(cifar10, tmp_path, path, "the label 10, wanted labels from 0 to 9")
    monkeypatch.setattr(batches, "MAX_RECORDS", 3)
    refused(cifar10, tmp_path, where / "data_batch_1.bin", "too large")


def member(name, kind=tarfile.REGTYPE, size=0, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, size, link
    return info


FIRST = f"{batches.FOLDER}/data_batch_1.bin"
HOSTILE = {
    "a path upwards": (member("../evil"), "path outside the archive: '../evil'"),
    "a path upwards inside": (member(f"{batches.FOLDER}/../../evil"), "path outside the archive"),
    "an absolute path": (member("/etc/evil"), "path outside the archive: '/etc/evil'"),
    "a symbolic link": (
        member(FIRST, tarfile.SYMTYPE, link="/etc/passwd"),
        "data_batch_1.bin: is not an ordinary file",
    ),
    "a hard link": (member(FIRST, tarfile.LNKTYPE, link="readme.html"), "data_batch_1.bin: is not an ordinary file"),
    "a device": (member(FIRST, tarfile.CHRTYPE), "data_batch_1.bin: is not an ordinary file"),
    "a pipe": (member(FIRST, tarfile.FIFOTYPE), "data_batch_1.bin: is not an ordinary file"),
    "a folder": (member(FIRST, tarfile.DIRTYPE), "data_batch_1.bin: is not an ordinary file"),
    "the same batch twice": (member(FIRST, size=4 * 3073), "data_batch_1.bin twice"),
    "half a record": (member(FIRST, size=1000), "data_batch_1.bin: wanted a multiple of 3,073 bytes"),
    "a batch too large": (member(FIRST, size=6 * 3073), "data_batch_1.bin: too large"),
    "a bomb beside the batches": (member("readme", size=20 << 20), "too large when decompressed"),
    "a bomb in an extended header": (member("x", tarfile.XHDTYPE, size=20 << 20), "too large when decompressed"),
    "a bomb in a long name": (member("x", tarfile.GNUTYPE_LONGNAME, size=20 << 20), "too large when decompressed"),
}


@pytest.mark.parametrize(("extra", "reason"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_archive_is_refused_and_leaves_nothing_behind(tmp_path, monkeypatch, extra, reason):
    monkeypatch.setattr(batches, "MAX_RECORDS", 5)
    path = write_archive(tmp_path, gzip.compress(tar_of(cifar_contents(), [extra]), 1))
    tracemalloc.start()
    refused(cifar10, tmp_path, path, reason)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20
    assert [found for found in tmp_path.rglob("*") if found.is_file()] == [path]


def test_headers_nested_without_end_are_refused(tmp_path):
    chain = [member("x", tarfile.GNUTYPE_LONGNAME, size=1) for _ in range(2000)]
    refused(cifar10, tmp_path, write_archive(tmp_path, gzip.compress(tar_of({}, chain), 1)), "tar archive")


@pytest.mark.parametrize("name", batches.BATCHES)
def test_an_archive_without_one_of_the_batches_is_refused(tmp_path, name):
    path = write_archive(tmp_path, gzip.compress(tar_of(cifar_contents(1), leave_out=[name]), 1))
    refused(cifar10, tmp_path, path, f"holds no {batches.FOLDER}/{name}")


tar = tar_of(cifar_contents(1))
packed_tar = gzip.compress(tar, 1)
DAMAGED_ARCHIVES = {
    "empty": (b"", ""),
    "not gzip": (tar, "not gzip"),
    "not tar": (gzip.compress(b"no archive" * 1000), "not a tar archive"),
    "nothing": (gzip.compress(b""), ""),
    "half": (packed_tar[: len(packed_tar) // 2], "truncated"),
    "without the checksum": (packed_tar[:-8], "truncated"),
    "a wrong checksum": (packed_tar[:-8] + bytes(4) + packed_tar[-4:], "CRC"),
    "a tar cut in a batch": (gzip.compress(tar[:3000]), "tar archive"),
}


@pytest.mark.parametrize(("contents", "reason"), DAMAGED_ARCHIVES.values(), ids=DAMAGED_ARCHIVES)
def test_a_damaged_archive_is_named_with_the_reason(tmp_path, contents, reason):
    refused(cifar10, tmp_path, write_archive(tmp_path, contents), reason)


@given(damage=DAMAGE)
def test_an_archive_damaged_anywhere_is_refused_by_name(tmp_path, damage):
    loads_or_is_refused(cifar10, tmp_path, write_archive(tmp_path, damaged(packed_tar, damage)))


HEADERS = st.sampled_from([offset for offset in range(0, len(tar), 512) if tar[offset + 257 :][:5] == b"ustar"])


@settings(max_examples=200)
@given(header=HEADERS, at=st.integers(0, 511), value=st.integers(1, 255), fix=st.booleans())
def test_an_archive_with_any_byte_of_a_header_changed_loads_or_is_refused_by_name(tmp_path, header, at, value, fix):
    contents = bytearray(tar)
    contents[header + at] ^= value
    if fix:  # the checksum of the header, without which nothing else of it is looked at
        contents[header + 148 : header + 156] = b" " * 8
        contents[header + 148 : header + 156] = b"%06o\0 " % sum(contents[header : header + 512])
    loads_or_is_refused(cifar10, tmp_path, write_archive(tmp_path, gzip.compress(bytes(contents), 1)))


@pytest.mark.parametrize("load", [mnist, cifar10])
def test_a_folder_that_cannot_be_looked_into_is_named(tmp_path, load):
    refused(load, tmp_path / ("long" * 100), "long", "cannot be read: File name too long")


# The digits


def test_the_digits_are_scikit_learns_split_once_and_for_all():
    from sklearn.datasets import load_digits  # noqa: PLC0415 - slow

    data, again = digits(Path("ignored")), digits()
    assert same(data, again)
    assert (len(data.train), len(data.test), data.held_out, data.image) == (1437, 360, 287, (1, 8, 8))
    assert data.train.inputs.dtype == torch.float32
    assert data.train.targets.dtype == torch.int64
    everything = torch.cat(
        [torch.cat([part.inputs.flatten(1) * 16, part.targets[:, None]], 1) for part in (data.train, data.test)]
    )
    bundled = load_digits()
    wanted = np.concatenate([bundled.data, bundled.target[:, None]], 1)
    assert sorted(map(tuple, everything.tolist())) == sorted(map(tuple, wanted.tolist()))
    assert data.train.targets[:-287].bincount().min() > 90
    assert data.test.targets.bincount().min() > 20


# The synthetic data


@given(edges=st.integers(1, 50), trial=st.integers(0, 2**63 - 1))
def test_every_node_of_the_first_two_layers_has_exactly_m_edges_of_weight_one(edges, trial):
    truth = synthetic(edges, trial=trial, samples=(2, 1, 1)).truth
    for weight in truth[:2]:
        assert weight.shape == (50, 50)
        assert (weight.count_nonzero(dim=1) == edges).all()
        assert weight.unique().tolist() in ([-1, 0, 1], [-1, 1])
    assert truth[2].shape == (1, 50)
    assert truth[2].count_nonzero() == 50


def test_edges_and_signs_are_uniform_over_trials():
    weights = torch.stack([w for trial in range(100) for w in synthetic(10, trial=trial, samples=(2, 1, 1)).truth[:2]])
    uses = weights.abs().sum((0, 1)) / (200 * 50)
    assert (uses - 0.2).abs().max() < 5 * (0.2 * 0.8 / 10_000) ** 0.5
    assert weights.sum().abs() < 5 * weights.count_nonzero() ** 0.5
    last = torch.cat([synthetic(trial=trial, samples=(2, 1, 1)).truth[2] for trial in range(100)])
    assert abs(last.mean()) < 5 / 5000**0.5
    assert abs(last.std() - 1) < 5 / 10_000**0.5


@pytest.mark.parametrize(("activation", "layer"), [("relu", nn.ReLU), ("sigmoid", nn.Sigmoid)])
@pytest.mark.parametrize("snr", [1.0, 10.0])
def test_targets_are_the_true_networks_output_and_noise_of_the_wanted_ratio(activation, layer, snr):
    made = synthetic(10, snr, activation, trial=3, samples=(20_000, 4_000, 20_000))
    network = nn.Sequential(
        nn.Linear(50, 50, bias=False), layer(), nn.Linear(50, 50, bias=False), layer(), nn.Linear(50, 1, bias=False)
    )
    for linear, weight in zip(network[::2], made.truth, strict=True):
        linear.weight.data = weight
    assert made.data.validation is not None
    variance = network(made.data.train.inputs).var().item()
    for split, count in ((made.data.train, 20_000), (made.data.validation, 4_000), (made.data.test, 20_000)):
        assert split.inputs.shape == (count, 50)
        assert split.targets.shape == (count, 1)
        with torch.no_grad():
            noise = split.targets - network(split.inputs)
        assert variance / noise.var().item() == pytest.approx(snr, rel=5 * (2 / count) ** 0.5)
        assert abs(noise.mean()) < 5 * (variance / snr / count) ** 0.5
        assert abs(noise.flatten() @ split.inputs[:, 0]) / count < 5 * (variance / snr / count) ** 0.5
    features = made.data.train.inputs
    assert abs(features.mean()) < 5 / 1e6**0.5
    assert abs(features.std() - 1) < 5 / 2e6**0.5


def test_the_same_arguments_make_the_same_data_whatever_the_global_seed():
    torch.manual_seed(1)
    first = synthetic(trial=7, samples=(50, 10, 50))
    before = torch.get_rng_state()
    torch.manual_seed(2)
    second = synthetic(trial=7, samples=(50, 10, 50))
    assert same(first.data, second.data)
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), before)


def test_trials_differ_and_splits_differ_but_the_truth_does_not_depend_on_the_noise_or_the_samples():
    made = synthetic(trial=0, samples=(50, 50, 50))
    other = synthetic(trial=1, samples=(50, 50, 50))
    for mine, its in zip(made.truth, other.truth, strict=True):
        assert not torch.equal(mine, its)
    assert not torch.equal(made.data.train.inputs, other.data.train.inputs)
    assert not torch.equal(made.data.train.inputs, made.data.test.inputs)
    assert not torch.equal(made.data.train.inputs, made.data.validation.inputs)
    for options in ({"snr": 1.0}, {"activation": "sigmoid"}, {"samples": (9, 9, 9)}):
        for mine, its in zip(made.truth, synthetic(trial=0, **options).truth, strict=True):
            assert torch.equal(mine, its)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"edges": 0}, "edges must be from 1 to 50, got 0"),
        ({"edges": 51}, "edges must be from 1 to 50, got 51"),
        ({"snr": 0.0}, "snr must be > 0, got 0.0"),
        ({"snr": float("nan")}, "snr must be > 0, got nan"),
        ({"activation": "sigmod"}, "got sigmod; did you mean sigmoid?"),
        ({"trial": -1}, "trial must be >= 0, got -1"),
        ({"samples": (1, 0, 1)}, "samples must be three numbers >= 1"),
    ],
)
def test_wrong_options_of_the_synthetic_data_are_refused(options, reason):
    with pytest.raises(ArgumentError) as caught:
        synthetic(**options)
    assert reason in str(caught.value)


# Status


def states(place):
    return {each.name: each for each in status(place)}


def test_status_tells_what_is_missing_damaged_and_ready(tmp_path):
    found = states(tmp_path)
    assert {name: each.state for name, each in found.items()} == {
        "digits": "bundled",
        "synthetic": "generated",
        "mnist": "missing",
        "cifar10": "missing",
    }
    assert "inface data fetch mnist" in found["mnist"].detail
    write_mnist(tmp_path)
    write_archive(tmp_path, packed_tar[:-1])
    found = states(tmp_path)
    assert found["mnist"].state == "ready"
    assert found["mnist"].path == tmp_path / "mnist"
    assert found["mnist"].detail == "12 train, 5 test; not the published contents"
    assert found["cifar10"].state == "damaged"
    assert batches.ARCHIVE in found["cifar10"].detail


@pytest.mark.parametrize("packed", [True, False])
def test_status_knows_the_published_contents_however_they_are_compressed(tmp_path, monkeypatch, packed):
    contents = {name: idx_bytes(array) for name, array in write_mnist(tmp_path, packed).items()}
    contents |= {name: array.tobytes() for name, array in cifar_contents(1).items()}
    if packed:
        write_archive(tmp_path, packed_tar)
    else:
        write_batches(tmp_path, cifar_contents(1))
    for name, bytes_ in contents.items():
        monkeypatch.setitem(check.PUBLISHED, name, hashlib.sha256(bytes_).hexdigest())
    found = states(tmp_path)
    assert found["mnist"].detail == "12 train, 5 test; the published contents"
    assert found["cifar10"].detail == "5 train, 1 test; the published contents"
