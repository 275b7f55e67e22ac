"""What is not plain data in a group, as plain data and back: sets, and functions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from .checks import check_options
from .paths import Path
from .relative import NUMBERS
from .sets import Set
from .sets.base import EXACT, computable
from .support import Compute
from .units import names_of
from .warning import warn

__all__ = ["adopting", "beside", "check_state", "restored_group", "to_plain_data"]


# What options were before there were any: states that are older do not name them.
OLDER = {
    "in_face_steps": 1,
    "relative": None,
    "dampening": None,
    "precondition": False,
    "path": None,
    "capturable": False,
}
OLDER_PATH = {"every_block": False}


def to_plain_data(_: Optimizer, data: dict[str, Any]) -> None:
    """A state hook: sets by their kind and options, functions as ``"custom"``."""
    for group in data["param_groups"]:
        if group["set"] is not None:
            group["set"] = group["set"].to_dict()
        if callable(group["in_face"]):
            group["in_face"] = "custom"
        if group["path"] is not None:
            group["path"] = dict(group["path"])  # the live one goes on
        if group.get("compute") is not None:
            group["compute"] = copy_of(group["compute"])


def check_state(data: dict[str, Any]) -> None:
    """Raise a ValueError if saved data is not made of a state for each parameter, and of groups."""
    for name, kind in (("state", dict), ("param_groups", list)):
        if not isinstance(data.get(name), kind):
            raise ValueError(f"load_state_dict: {name}: wanted a {kind.__name__}, got {_shown(data.get(name))}")
    for number, state in data["state"].items():
        if not isinstance(state, dict):
            raise ValueError(f"load_state_dict: state of parameter {number}: wanted a dict, got {_shown(state)}")
    for number, group in enumerate(data["param_groups"]):
        if not isinstance(group, dict) or not isinstance(group.get("params"), list):
            raise ValueError(
                f"load_state_dict: group {number}: wanted a dict with a list of params, got {_shown(group)}"
            )
        if not isinstance(group.get("set"), dict | None):
            raise ValueError(f"load_state_dict: group {number}: set: wanted a dict or None, got {_shown(group['set'])}")


@contextmanager
def adopting(optimizer: Optimizer) -> Iterator[None]:
    """Within it, ``load_state_dict`` of an optimizer takes sets and functions from plain data, and keeps float32 as it is.

    Torch casts state to the dtype of its parameter, which would round what is more exact for a reason.
    """
    loaded: dict[str, Any] = {}

    def adopt(_: Optimizer, data: dict[str, Any]) -> dict[str, Any]:
        check_state(data)
        groups = data["param_groups"]
        if len(groups) == len(optimizer.param_groups):  # torch refuses another number of groups
            pairs = zip(optimizer.param_groups, groups, strict=True)
            groups = [restored_group(index, live, saved) for index, (live, saved) in enumerate(pairs)]
            _follow_steps(optimizer.param_groups, groups, data["param_groups"])
            _warn_of_other_paths(optimizer.param_groups, groups, data["param_groups"])
        loaded.update(data, param_groups=groups)
        return loaded

    def keep_precision(_: Optimizer) -> None:
        ids = [i for group in loaded["param_groups"] for i in group["params"]]
        params = [p for group in optimizer.param_groups for p in group["params"]]
        for i, p in zip(ids, params, strict=True):
            for key, value in loaded["state"].get(i, {}).items():
                if isinstance(value, Tensor) and (key in NUMBERS or (p.dtype not in EXACT and key != "step")):
                    optimizer.state[p][key] = computable(value.detach()).clone().to(p.device)

    # Last before and first after: the hooks of others see, and may rewrite, plain data.
    handles = [
        optimizer.register_load_state_dict_pre_hook(adopt),
        optimizer.register_load_state_dict_post_hook(keep_precision, prepend=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _shown(value: object) -> str:
    return f"{value!r:.60}" if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"


def restored_group(index: int, live: dict[str, Any], saved: dict[str, Any]) -> dict[str, Any]:
    """A saved group with its set, and its function where it had one."""
    group = {**OLDER, **saved, "set": _restored_set(index, live, saved)}
    if isinstance(group["path"], dict):
        older = {**OLDER_PATH, "length": live["path"]["length"] if live["path"] else 0.0}
        if older["length"] and "length" not in group["path"]:
            group["relative"] = live["relative"]  # which was bounded by what short trainings can bear
        group["path"] = {**older, **group["path"]}
    if group.get("in_face") == "custom":
        if not callable(live["in_face"]):
            raise ValueError(
                f"load_state_dict: group {index} was saved with a function as in_face; make the optimizer with it"
            )
        group["in_face"] = live["in_face"]
    try:
        check_options({**live, **group})
    except ValueError as error:
        raise ValueError(f"load_state_dict: group {index}: {error}") from None
    group["path"] = _restored_path(index, live, group["path"])
    compute = _restored_compute(index, live, group.pop("compute", None))
    return group if compute is None else {**group, "compute": compute}


def copy_of(compute: Compute) -> Compute:
    """A copy that does not change with the live one."""
    limits = {key: list(numbers) for key, numbers in compute["limits"].items()}
    return {"mode": compute["mode"], "nonzeros": list(compute["nonzeros"]), "limits": limits}


def _restored_compute(index: int, live: dict[str, Any], saved: Any) -> Compute | None:
    """How layers computed when the state was saved, in the mode that they have."""
    own: Compute | None = live.get("compute")
    if saved is None or own is None:
        return own
    try:
        limits = {str(key): [float(first), float(second)] for key, (first, second) in saved["limits"].items()}
        counts = [int(count) for count in saved["nonzeros"]]
    except (KeyError, TypeError, ValueError, AttributeError):
        counts, limits = [], {}
    if len(counts) != len(own["nonzeros"]):
        raise ValueError(
            f"load_state_dict: group {index}: compute: wanted a dict with limits, and with nonzeros of {len(own['nonzeros'])} parameter(s), "
            f"got {_shown(saved)}"
        )
    return {"mode": own["mode"], "nonzeros": counts, "limits": {**own["limits"], **limits}}


def _restored_path(index: int, live: dict[str, Any], saved: Path | None) -> Path | None:
    """Where the saved path was, on the path that the optimizer was made with."""
    own: Path | None = live["path"]
    if own is None or saved is None:
        return saved if own is None else own
    if not own["steps"]:
        return {**saved, "pool": own["pool"], "target": own["target"]}
    if saved["steps"] != own["steps"] <= saved["step"] and saved["density"] != own["target"]:
        raise ValueError(
            f"load_state_dict: group {index} ({', '.join(names_of(live, index)[:3])}) was saved after {saved['step']} of "
            f"{saved['steps']} steps, at a density of {saved['density']:.3g}; wanted an optimizer with more steps, got "
            f"steps={own['steps']}"
        )
    return {
        **own,
        "step": saved["step"],
        "start": saved["start"],
        "density": saved["density"],
        "budget": saved["budget"],
        "length": saved["length"],
    }


def _follow_steps(live: list[dict[str, Any]], groups: list[dict[str, Any]], saved: list[dict[str, Any]]) -> None:
    """A longer training has its own number of in-face steps, in all groups."""
    pairs = [(own["path"], old.get("path")) for own, old in zip(live, saved, strict=True)]
    if any(own and own["by_itself"] and own["steps"] and old and own["steps"] != old["steps"] for own, old in pairs):
        for own, group in zip(live, groups, strict=True):
            group["in_face_steps"] = own["in_face_steps"]


def _warn_of_other_paths(live: list[dict[str, Any]], groups: list[dict[str, Any]], saved: list[dict[str, Any]]) -> None:
    """Say once what of a saved path does not go on."""
    for index, (own, group, old) in enumerate(zip(live, groups, saved, strict=True)):
        path, before = group["path"], old.get("path")
        if own["path"] is None or before is None:
            continue
        if path["steps"] != before["steps"]:
            warn(
                f"load_state_dict: was saved on a path of {before['steps']} steps, the optimizer was made with "
                f"steps={path['steps']}, which is used from now on; it goes on at step {path['step']} of {path['steps']}"
            )
            return
        pool, other = (one["pool"] or "*" for one in (path, before))
        if pool != other:
            warn(
                f'load_state_dict: "{names_of(own, index)[0]}" was saved with the layers of "{other}", the optimizer has it '
                f'with those of "{pool}", with which it shares a density from now on'
            )
            return


def _restored_set(index: int, group: dict[str, Any], saved_group: dict[str, Any]) -> Set | None:
    live: Set | None = group["set"]
    saved: dict[str, Any] | None = saved_group.get("set")
    if saved is None or live is None:
        if (saved is None) != (live is None):
            raise ValueError(f"load_state_dict: group {index} was saved with set {saved!r}, the optimizer has {live!r}")
        return None
    wanted = {key: value for key, value in live.to_dict().items() if key != "radius"}
    found = {key: value for key, value in saved.items() if key != "radius"}
    if found != wanted:
        raise ValueError(f"load_state_dict: group {index} was saved with set {found}, the optimizer has {wanted}")
    restored = Set.from_dict(saved)
    names = names_of(group, index)
    for p, name in zip(group["params"], names, strict=True):
        if p.numel():
            restored.check(p.shape, name)
    if not saved_group.get("path") and not _same_radius(restored.radius, live.radius):
        warn(
            f"load_state_dict: group {index} ({', '.join(names[:3])}) was saved with radius {_radius(restored.radius)}, the "
            f"optimizer has {_radius(live.radius)}; the saved one is used from now on"
        )
    return beside(restored, group["params"])


def _same_radius(saved: float | Tensor, live: float | Tensor) -> bool:
    if isinstance(saved, Tensor) and isinstance(live, Tensor):
        return saved.shape == live.shape and bool((saved.cpu().double() == live.cpu().double()).all())
    return not isinstance(saved, Tensor) and not isinstance(live, Tensor) and saved == live


def _radius(radius: float | Tensor) -> str:
    if not isinstance(radius, Tensor):
        return f"{radius:g}"
    return f"{float(radius.min()):g} to {float(radius.max()):g} ({radius.numel()} values)"


def beside(set_: Set, params: list[Tensor]) -> Set:
    """The set with its radii on the device of its parameters."""
    if isinstance(set_.radius, Tensor) and params:
        return set_.with_radius(set_.radius.to(params[0].device))
    return set_
