"""The defaults of ocean-train, and time constants as a user gives them."""

import pytest
from ocean_train.loop import Settings
from ocean_train.recipe import LOG_TIME_CONSTANT_S, defaults, steps_of, text_learning_rate


def test_a_text_is_trained_with_the_relay_of_the_paper() -> None:
    settings = Settings(**defaults("ocean", log=False, width=64))
    assert settings.max_time_constant == 1 and settings.first_weights == "normal"


@pytest.mark.parametrize("rate_hz", [1.0, 10.0, 50.0, 99.99])
def test_a_logs_time_constants_follow_from_its_rate(rate_hz: float) -> None:
    settings = Settings(**defaults("ocean", log=True, width=64, rate_hz=rate_hz))
    assert settings.max_time_constant == pytest.approx(LOG_TIME_CONSTANT_S * rate_hz, rel=1e-3)
    assert 64 % settings.heads == 0


@pytest.mark.parametrize("width", [1, 7, 32])
@pytest.mark.parametrize("model", ["ocean", "transformer", "lstm", "gru"])
def test_defaults_are_valid_settings(model: str, width: int) -> None:
    width = width if model == "ocean" else 32
    for log in (False, True):
        Settings(model=model, width=width, **defaults(model, log=log, width=width))


@pytest.mark.parametrize(("width", "rate"), [(16, 1e-2), (64, 7.81e-3), (128, 3.91e-3), (256, 1.95e-3)])
def test_a_texts_learning_rate_follows_from_the_width(width: int, rate: float) -> None:
    assert text_learning_rate(width) == rate


def test_time_constants_are_in_steps_or_in_seconds() -> None:
    assert steps_of("128", None) == 128
    assert steps_of(" 2.5 s ", 50.0) == 125
    assert steps_of("0.001s", 50.0) == 1, "a shorter one than a step is the relay"


@pytest.mark.parametrize("text", ["", "s", "-3", "0", "nan", "inf", "3m", "1e400s"])
def test_what_is_no_time_constant_is_refused(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"--time-constants takes a number of steps, such as 128, or of seconds"
    ):
        steps_of(text, 50.0)


def test_seconds_need_a_rate() -> None:
    with pytest.raises(ValueError, match="the rate of the data is not known: give it in steps"):
        steps_of("2s", None)


def test_dropout_is_a_default_where_classes_are_told() -> None:
    assert defaults("gru", log=True, classes=True, width=64)["dropout"] > 0
    assert defaults("ocean", log=True, width=64)["dropout"] == 0
