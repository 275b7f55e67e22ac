"""Accelerate trains as an ordinary loop does, on one process and on two; gap and report are read through its wrapper."""

import json
import os

import pytest
import torch
from torch import nn

import inface
from integrations import networks

accelerate = pytest.importorskip("accelerate")
from inface.integrations.accelerate import gap, measure, report, unwrapped  # noqa: E402


def train(epochs, batch=networks.BATCH, folder=None, after=None):
    accelerator = accelerate.Accelerator(cpu=True)
    model = networks.network()
    opt = inface.sparse_optimizer(model, density=0.1, lr=0.1, steps=48)
    model, opt, loader = accelerator.prepare(model, opt, networks.loader(batch))
    if after is not None:
        accelerator.load_state(str(folder))
    for epoch in range(after or 0, epochs):
        for x, y in loader:
            opt.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(x), y))
            opt.step()
        if folder is not None and after is None and epoch == 3:
            accelerator.save_state(str(folder))
    return accelerator.unwrap_model(model), opt


def test_accelerate_is_a_plain_loop():
    model = networks.network()
    plain = inface.sparse_optimizer(model, density=0.1, lr=0.1, steps=48)
    networks.plain(model, plain, 8)
    found, opt = train(8)
    assert networks.same(found, model)
    assert unwrapped(opt) is opt.optimizer
    assert float(gap(opt)) == float(plain.gap)
    assert report(opt).as_dict() == plain.report().as_dict()
    assert measure(opt)["density"] == networks.nonzeros(model) / 368


def test_a_saved_state_resumes_in_the_middle_of_a_path(tmp_path):
    expected, _ = train(8, folder=tmp_path)
    found, _ = train(8, folder=tmp_path, after=4)
    assert networks.same(found, expected)


def test_two_processes_are_one_with_the_same_batches(tmp_path):
    expected, opt = train(8)
    networks.two_processes(__file__, tmp_path)
    networks.close(expected, torch.load(tmp_path / "weights.pt", weights_only=True))
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert ranks[0] == ranks[1]
    assert ranks[0]["density"] == measure(opt)["density"]


def main(folder):
    """One of two processes; Accelerate deals out the batches."""
    model, opt = train(8, networks.BATCH // 2)
    rank = os.environ["RANK"]
    with open(f"{folder}/{rank}.json", "w", encoding="utf-8") as file:  # noqa: PTH123
        json.dump(measure(opt), file)
    if rank == "0":
        torch.save(model.state_dict(), f"{folder}/weights.pt")


if __name__ == "__main__":
    networks.one_process(main)
