"""The learning rate follows MiniMind's cosine, which always counts to the whole number of steps."""

import math

from exact_resume.lab.schedule import CosineSchedule


def test_rates_are_those_of_the_formula():
    schedule = CosineSchedule(0.003, 60)
    rates = [schedule.advance() for _ in range(60)]
    assert rates == [0.003 * (0.1 + 0.45 * (1 + math.cos(math.pi * step / 60))) for step in range(1, 61)]
    assert math.isclose(rates[29], 0.003 * 0.55)
    assert math.isclose(rates[59], 0.0003)


def test_restored_schedule_goes_on_where_it_was():
    whole, first, second = (CosineSchedule(0.003, 60) for _ in range(3))
    expected = [whole.advance() for _ in range(60)]
    for _ in range(17):
        first.advance()
    second.load_state_dict(first.state_dict())
    assert [second.advance() for _ in range(43)] == expected[17:]
