"""Lightning trains as an ordinary loop does, resumes exactly, and its callback logs and drives paths."""

import os

import pytest
import torch
from torch import nn

import inface
from inface.sets import L1Ball
from integrations import networks

pl = pytest.importorskip("lightning.pytorch")
from lightning.fabric import Fabric  # noqa: E402

from inface.integrations.lightning import FrankWolfeCallback  # noqa: E402

QUIET = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "use_distributed_sampler": False,
    "log_every_n_steps": 1,
}
EPOCHS = 8


class Module(pl.LightningModule):
    def __init__(self, make):
        super().__init__()
        self.network, self.make = networks.network(), make

    def training_step(self, batch, _):
        x, y = batch
        return nn.functional.cross_entropy(self.network(x), y)

    def configure_optimizers(self):
        return self.make(self.network)


class Seen(pl.Callback):
    """The numbers that were logged, step by step."""

    def __init__(self):
        self.found = []

    def on_train_batch_end(self, trainer, *_):
        self.found.append({name: float(value) for name, value in trainer.callback_metrics.items()})


def away(network):
    return inface.FrankWolfe(network, networks.SETS, **networks.AWAY)


def sparse(network):
    return inface.sparse_optimizer(network, density=0.1, lr=0.1, steps="auto")


def balls(network):
    sets = {name: L1Ball(density=0.2) for name in networks.SETS}
    return inface.FrankWolfe(network, sets, lr=0.1, in_face="projected")


def balls_with_a_scheduler(network):
    opt = balls(network)
    inface.DensityScheduler(opt, steps=EPOCHS * 6)
    return opt


def fit(make, epochs=EPOCHS, *more, resume=None, **options):
    module = Module(make)
    callback = FrankWolfeCallback()
    trainer = pl.Trainer(max_epochs=epochs, callbacks=[callback, *more], **{**QUIET, **options})
    trainer.fit(module, networks.loader(), ckpt_path=resume)
    return module.network, trainer, callback


def test_lightning_is_a_plain_loop():
    model, opt = networks.away()
    expected = networks.plain(model, opt, EPOCHS)
    seen = Seen()
    found, _, _ = fit(away, EPOCHS, seen)
    assert networks.same(found, expected)
    last = seen.found[-1]
    assert last["inface/gap"] == pytest.approx(float(opt.gap))
    assert last["inface/drops"] == opt.report().drop > 0
    assert last["inface/clamps"] == opt.report().clamped
    assert last["inface/density/0.weight"] == pytest.approx(int(model[0].weight.count_nonzero()) / 320)


@pytest.mark.parametrize("make", [sparse, balls, balls_with_a_scheduler])
def test_paths_end_at_their_density_and_resume_exactly(make, tmp_path):
    expected, _, callback = fit(make)
    wanted = 0.1 if make is sparse else 0.2
    assert networks.nonzeros(expected) <= wanted * 368 + 1e-6
    assert callback.measure()["inface/path"] == wanted

    class Save(pl.Callback):
        def on_train_epoch_end(self, trainer, _):
            if trainer.current_epoch == 3:  # 24 of 48 gradients, in the middle of an iteration
                trainer.save_checkpoint(tmp_path / "half.ckpt")

    fit(make, EPOCHS, Save())
    again, _, later = fit(make, resume=tmp_path / "half.ckpt")
    assert networks.same(again, expected)
    assert later.state_dict() == callback.state_dict()


def test_accumulated_batches_are_one_step_of_a_path():
    model, trainer, _ = fit(balls, accumulate_grad_batches=2)
    assert trainer.global_step == EPOCHS * 3
    assert trainer.optimizers[0].param_groups[0]["path"]["step"] == EPOCHS * 3
    assert networks.nonzeros(model) <= 0.2 * 368


def test_a_trainer_without_an_end_has_to_be_told_one():
    with pytest.raises(
        ValueError, match="FrankWolfeCallback: a density path needs its length, the trainer expects inf"
    ):
        fit(sparse, -1)


def test_another_optimizer_is_refused():
    with pytest.raises(ValueError, match=r"wanted an inface\.FrankWolfe among the optimizers, got SGD"):
        fit(lambda network: torch.optim.SGD(network.parameters(), lr=0.1))


def test_fabric_is_a_plain_loop():
    model, opt = networks.away()
    expected = networks.plain(model, opt, 2)
    fabric = Fabric(accelerator="cpu", devices=1)
    found, opt = fabric.setup(*networks.away())
    for _ in range(2):
        for x, y in networks.loader():
            opt.zero_grad()
            fabric.backward(nn.functional.cross_entropy(found(x), y))
            opt.step()
    assert networks.same(found.module, expected)


def test_two_processes_are_one_with_the_same_batches(tmp_path):
    expected, _, _ = fit(sparse)
    networks.two_processes(__file__, tmp_path / "weights.pt")
    networks.close(expected, torch.load(tmp_path / "weights.pt", weights_only=True))


def main(out):
    """One of two processes: half of each batch."""
    module = Module(sparse)
    rank = int(os.environ["RANK"])
    batches = [(x.chunk(2)[rank], y.chunk(2)[rank]) for x, y in networks.loader()]
    trainer = pl.Trainer(
        max_epochs=EPOCHS,
        devices=2,
        strategy=pl.strategies.DDPStrategy(process_group_backend="gloo"),
        callbacks=[FrankWolfeCallback()],
        **QUIET,
    )
    trainer.fit(module, torch.utils.data.DataLoader(batches, batch_size=None))
    if rank == 0:
        torch.save(module.network.state_dict(), out)


if __name__ == "__main__":
    networks.one_process(main)
