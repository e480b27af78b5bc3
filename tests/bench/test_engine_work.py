from tokenmill.bench.engine_work import EngineWork, engine_work

PAGE = """\
# HELP tokenmill_engine_step_seconds Time of a step.
# TYPE tokenmill_engine_step_seconds histogram
tokenmill_engine_step_seconds_bucket{phase="decode",le="1.0"} 3
tokenmill_engine_step_seconds_sum{phase="idle_wait"} 50.0
tokenmill_engine_step_seconds_sum{phase="prefill"} 1.5
tokenmill_engine_step_seconds_sum{phase="decode"} 2.0
# TYPE tokenmill_engine_step_tokens histogram
tokenmill_engine_step_tokens_count{model="m"} 4
tokenmill_engine_step_tokens_sum{model="m"} 130
# TYPE tokenmill_engine_generation_tokens counter
tokenmill_engine_generation_tokens_total{model="m"} 9
"""


def test_busy_time_is_every_phase_but_waiting() -> None:
    assert engine_work(PAGE) == EngineWork(steps=4, busy_s=3.5, computed_tokens=130, generated_tokens=9)


def test_missing_series_are_nothing_done() -> None:
    assert engine_work("") == EngineWork()


def test_what_was_done_since() -> None:
    later, earlier = EngineWork(10, 5.0, 100, 20), EngineWork(4, 3.5, 60, 9)
    assert later.since(earlier) == EngineWork(6, 1.5, 40, 11)
