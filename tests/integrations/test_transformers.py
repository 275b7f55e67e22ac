"""The Trainer of transformers makes the optimizer, logs what it does, and resumes a path exactly."""

import json
import os

import pytest
import torch

import inface
from inface.sets import L1Ball
from integrations import networks

transformers = pytest.importorskip("transformers")
from inface.integrations.transformers import FrankWolfeCallback, optimizer  # noqa: E402

SEQUENCES = 64
ATTENTION = "transformer.h.*.attn.c_attn.weight"


def model():
    torch.manual_seed(0)
    sizes = {"vocab_size": 12, "n_positions": 8, "n_embd": 16, "n_layer": 1, "n_head": 2}
    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **dropouts))


def sequences():
    ids = [(number + torch.arange(8) * (1 + number % 3)) % 12 for number in range(SEQUENCES)]
    return [{"input_ids": each, "labels": each} for each in ids]


def arguments(folder, **options):
    usual = {
        "num_train_epochs": 6,
        "per_device_train_batch_size": 8,
        "learning_rate": 5e-3,
        "logging_steps": 4,
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "log_level": "error",
        "train_sampling_strategy": "sequential",
        "restore_callback_states_from_checkpoint": True,
    }
    return transformers.TrainingArguments(str(folder), **{**usual, **options})


def train(args, resume=None, callback=None, **chosen):
    trainer = transformers.Trainer(
        model(), args, train_dataset=sequences(), optimizer_cls_and_kwargs=optimizer(args, **chosen)
    )
    (callback or FrankWolfeCallback()).add_to(trainer)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def logged(trainer):
    return [entry for entry in trainer.state.log_history if "inface/density" in entry]


def test_a_path_gets_its_length_from_the_trainer(tmp_path):
    trainer = train(arguments(tmp_path, gradient_accumulation_steps=2), density=0.2)
    path = trainer.optimizer.optimizer.param_groups[0]["path"]
    assert path["step"] == path["steps"] == trainer.state.max_steps == 24
    last = logged(trainer)[-1]
    assert last["step"] == 24
    assert last["inface/density"] <= 0.2
    assert last["inface/path"] == 0.2
    assert f"inface/density/{ATTENTION.replace('*', '0')}" in last


def test_a_checkpoint_resumes_path_weights_and_counts(tmp_path):
    args = arguments(tmp_path, save_strategy="steps", save_steps=20)
    expected = train(args, density=0.2)
    again = train(args, str(tmp_path / "checkpoint-20"), density=0.2)
    assert networks.same(again.model, expected.model)
    assert logged(again)[-1] == pytest.approx(logged(expected)[-1])


def test_what_is_logged_and_saved_once_an_epoch_has_all_of_it(tmp_path, monkeypatch):
    args = arguments(tmp_path, num_train_epochs=2, logging_strategy="epoch", save_strategy="epoch")
    callback = FrankWolfeCallback()
    state, alone = callback.state, []

    def asked():  # by the first of several processes: a report of sharded parameters would wait for the others
        with monkeypatch.context() as patch:
            patch.setattr(inface.FrankWolfe, "report", alone.append)
            return state()

    callback.state = asked
    trainer = train(args, callback=callback, density=0.2)
    assert [entry["step"] for entry in logged(trainer)] == [8, 16]
    saved = json.loads((tmp_path / "checkpoint-16" / "trainer_state.json").read_text())
    counted = saved["stateful_callbacks"]["FrankWolfeCallback"]["attributes"]["counted"]
    assert counted["drops"] == logged(trainer)[-1]["inface/drops"] > 0
    assert not alone


def test_sets_by_name_and_their_density(tmp_path):
    trainer = train(arguments(tmp_path), sets={ATTENTION: L1Ball(1.0, per="input")}, in_face="away", project=True)
    weight = trainer.model.transformer.h[0].attn.c_attn.weight
    assert L1Ball(1.0, per="input").contains(weight).all()
    assert logged(trainer)[-1]["inface/gap"] > 0
    sized = {ATTENTION: L1Ball(density=0.3, per="input")}
    trainer = train(arguments(tmp_path), sets=sized, in_face="projected")
    weight = trainer.model.transformer.h[0].attn.c_attn.weight
    assert int(weight.count_nonzero()) <= 0.3 * weight.numel()


def test_the_callback_wants_our_optimizer(tmp_path):
    trainer = transformers.Trainer(model(), arguments(tmp_path), train_dataset=sequences())
    trainer.add_callback(FrankWolfeCallback())
    with pytest.raises(ValueError, match=r"wanted an inface\.FrankWolfe as the trainer's optimizer, got"):
        trainer.train()


def test_two_processes_are_one_with_the_same_batches(tmp_path):
    expected = train(arguments(tmp_path / "one", max_grad_norm=0.0), density=0.2)
    networks.two_processes(__file__, tmp_path)
    networks.close(expected.model, torch.load(tmp_path / "weights.pt", weights_only=True), atol=1e-4)


def main(folder):
    """One of two processes: the trainer gives each half of the samples."""
    batches = {"per_device_train_batch_size": 4, "ddp_backend": "gloo", "max_grad_norm": 0.0}
    trainer = train(arguments(folder, **batches), density=0.2)
    if os.environ["RANK"] == "0":
        torch.save(trainer.accelerator.unwrap_model(trainer.model).state_dict(), f"{folder}/weights.pt")


if __name__ == "__main__":
    networks.one_process(main)
