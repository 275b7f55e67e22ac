"""Comparisons trial by trial."""

import pytest

from inface.lab.paper.pairs import Pairs, paired, sign_test


def of(*errors):
    return [None if error is None else {"mse": error} for error in errors]


def error(trial):
    return trial["mse"]


@pytest.mark.parametrize(
    ("lower", "higher", "p"),
    [
        (0, 0, 1.0),
        (5, 0, 0.0625),
        (0, 6, 0.03125),
        (5, 5, 1.0),
        (2, 8, 0.109375),
        (8, 22, 0.0161248),
        (9, 21, 0.0427739),
    ],
)
def test_the_sign_test_has_the_p_values_of_the_binomial_distribution(lower, higher, p):
    assert sign_test(lower, higher) == pytest.approx(p, rel=1e-5)
    assert sign_test(higher, lower) == sign_test(lower, higher)


def test_a_trial_that_diverged_for_one_method_does_not_shift_the_others():
    found = paired(of(1.0, None, 3.0, 4.0), of(2.0, 0.1, 6.0, 4.0), error)
    assert found == Pairs(lower=2, higher=0, count=3, ratio=0.5)
    assert found.p == 0.5, "a tie counts for neither"


def test_trials_that_only_one_method_has_are_left_out():
    assert paired(of(1.0, 2.0), of(2.0), error) == Pairs(1, 0, 1, 0.5)
    assert paired(of(None, 1.0), of(1.0, None), error) is None
    assert paired([], of(1.0), error) is None
