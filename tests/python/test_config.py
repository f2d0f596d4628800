"""The configuration is read from one place, in one order, and says what is wrong. Needs nothing."""

import re
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtr_alloc import config
from dtr_alloc.config import (
    FIELDS,
    UNLIMITED_BYTES,
    Budget,
    Config,
    ConfigError,
    Debug,
    PoolOptions,
    Steps,
    TraceFile,
    format_size,
    given_settings,
    known_variables,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        *(("0", 0), ("8589934592", 2**33), ("8GiB", 2**33), (" 8 gib ", 2**33), ("512MiB", 2**29)),
        *(("1.5GB", 1_500_000_000), ("0.5KiB", 512), ("10B", 10), ("1TiB", 2**40), ("0.3kB", 300)),
        *(("8G", 2**33), ("1.5m", 3 * 2**19), ("8e9", 8_000_000_000), ("1.5e3", 1500)),
        *((4096, 4096), (8e9, 8_000_000_000)),
    ],
)
def test_a_size_is_bytes_or_a_number_with_a_unit(text, size_bytes):
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "value",
    ["", "GiB", "8X", "8.5", "-1", -1, "1e-9", "8GiB8", "٣", "1_000", 0.6, 1.0, True, None, 2**64],
)
def test_what_is_not_a_size_is_refused(value):
    with pytest.raises(ValueError, match=r"."):
        parse_size(value)


@given(st.text())
def test_any_text_is_a_budget_that_reads_back_or_a_config_error(text):
    try:
        budget = given_settings({"DTR_ALLOC_BUDGET": text}).config.budget
    except ConfigError:
        return
    assert Budget.parse(str(budget)) == budget


@given(st.integers(1, 10**6))
def test_a_share_reads_back_exactly(millionths):
    budget = Budget(share=Fraction(millionths, 10**6))
    assert Budget.parse(str(budget)) == budget


@given(st.integers(1, 100), st.integers(1, 2**50))
def test_a_share_is_never_more_than_the_device(percent, total_bytes):
    resolved = Budget.parse(f"{percent}%").resolve(total_bytes)
    assert resolved == max(1, percent * total_bytes // 100)


def test_unlimited_is_the_largest_number():
    assert Budget.parse("unlimited") == Budget.parse("Unlimited") == Budget()
    assert Budget().resolve(0) == UNLIMITED_BYTES


@pytest.mark.parametrize("text", ["0", "0%", "0.0GiB", "101%", "-5%", "%", "all", str(2**64)])
def test_a_budget_is_more_than_nothing_and_at_most_the_device(text):
    with pytest.raises(ConfigError, match="DTR_ALLOC_BUDGET is"):
        given_settings({"DTR_ALLOC_BUDGET": text})


def test_a_share_of_an_unknown_device_is_an_error():
    with pytest.raises(ConfigError, match="size is unknown"):
        Budget.parse("60%").resolve(0)


@pytest.mark.parametrize(
    "environ",
    [
        *({}, {"DTR_ALLOC_SWAP": "Last-resort"}, {"DTR_ALLOC_BUDGET": "", "DTR_ALLOC_CONFIG": ""}),
        {"DTR_BUDGET": "x", "PATH": "/"},
        {"DTR_ALLOC_BUILD": "debug", "CXX": "c++", "DTR_ALLOC_CACHE": "x"},
    ],
    ids=["none", "the default", "empty", "other people's", "of the build and the bridge"],
)
def test_variables_that_set_nothing_leave_the_defaults(environ):
    assert given_settings(environ).config == Config()


def test_arguments_win_over_variables_over_the_file_over_defaults(tmp_path):
    path = tmp_path / "dtr.toml"
    path.write_text('budget = "1GiB"\nswap = "1MiB"\ndebug = "verify:10"\n')
    environ = {"DTR_ALLOC_CONFIG": str(path), "DTR_ALLOC_BUDGET": "2GiB", "DTR_ALLOC_SWAP": "2MiB"}
    config = given_settings(environ, budget="3GiB", device=None).config
    assert config.budget.resolve(0) == 3 * 2**30
    assert config.swap == 2 * 2**20
    assert config.debug == Debug(verify=10)
    assert config.device == "auto"
    assert given_settings(environ)["budget"].source == "DTR_ALLOC_BUDGET"


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        *(("DTR_ALLOC_BUDGET", "much", "60%"), ("DTR_ALLOC_DEVICE", "tpu", "auto, cuda, cpu")),
        *(("DTR_ALLOC_HEURISTIC", "best", "marginal"), ("DTR_ALLOC_STATS", " ", "a path")),
        ("DTR_ALLOC_SWAP", "on", "'off', or 'last-resort'"),
        *[
            ("DTR_ALLOC_THRASH", wrong, "a number above 1")
            for wrong in ("1", "-2", "nan", "inf", "x")
        ],
        ("DTR_ALLOC_LOG", " ", "a path"),
        ("DTR_ALLOC_TRACE", "oom:", "a path, or oom:PATH"),
        ("DTR_ALLOC_TRACE", " ", "a path, or oom:PATH"),
        *[
            ("DTR_ALLOC_POOL", wrong, "chunk:SIZE (2MiB; or auto), keep:SIZE")
            for wrong in (
                *("chunk:0", "keep:-1", "chunk", "fixed:1", "strict:1", "chunk:1,chunk:2", "big"),
                ",",
            )
        ],
        *[
            ("DTR_ALLOC_DEBUG", wrong, "off, or parts with commas between them: poison, verify:N")
            for wrong in (
                *("poison:1", "verify", "verify:-1", "verify:ten", "no_moves", "guard:1", "tiny"),
                *("tiny:-1", "on", "off,poison"),
            )
        ],
    ],
)
def test_a_wrong_variable_names_itself_its_value_and_what_is_allowed(name, value, allowed):
    with pytest.raises(ConfigError) as caught:
        given_settings({name: value})
    assert name in str(caught.value)
    assert repr(value) in str(caught.value)
    assert allowed in str(caught.value)


@pytest.mark.parametrize("text", ["0", "..", " ", "5..3", "..0", "1...3", "-1", "a..b", "1,2"])
def test_wrong_steps_name_what_is_allowed(text):
    with pytest.raises(ConfigError, match=r"log_steps is '.*3\.\.5, 3\.\. or \.\.5"):
        given_settings({}, log_steps=text)


def test_a_wrong_argument_names_itself():
    with pytest.raises(ConfigError, match=r"the argument budget is 0\.6"):
        given_settings({}, budget=0.6)
    with pytest.raises(TypeError, match=r"unknown setting 'bugdet'.* Did you mean budget\?"):
        given_settings({}, bugdet=1)


def test_an_unknown_variable_is_an_error_that_lists_the_known_ones():
    with pytest.raises(ConfigError) as caught:
        given_settings({"DTR_ALLOC_BUGDET": "8GiB"})
    assert "DTR_ALLOC_BUGDET" in str(caught.value)
    for name in known_variables():
        assert name in str(caught.value)


def test_every_variable_that_the_repository_reads_is_known():
    root = Path(__file__).parents[2]
    texts = [
        path.read_text()
        for folder in ("dtr_alloc", "native", "bench", "tests", "docs", ".")
        for path in (root / folder).glob("*" if folder == "." else "**/*")
        if path.suffix in {".py", ".md"} or path.name == "Makefile"
    ]
    read = r"""(?:environ|getenv)\W*(?:get|pop)?\W*(DTR_ALLOC_\w+)|\b(DTR_ALLOC_\w+)="""
    found = {"".join(names) for text in texts for names in re.findall(read, text)}
    assert {"DTR_ALLOC_BUDGET", "DTR_ALLOC_BUILD"} < found
    mistyped = {"DTR_ALLOC_BUGDET", "DTR_ALLOC_HEURISTICS"}  # by tests
    assert found - mistyped <= set(known_variables())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *(('bugdet = "8GiB"', "'bugdet'"), ('budget = "lots"', "budget in DTR_ALLOC_CONFIG")),
        *(("budget = 0.5", "is 0.5"), ("debug = true", "debug in DTR_ALLOC_CONFIG")),
        ("budget =", "a TOML file"),
    ],
)
def test_a_wrong_file_is_named_with_its_key(tmp_path, text, message):
    path = tmp_path / "dtr.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        given_settings({"DTR_ALLOC_CONFIG": str(path)})
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"DTR_ALLOC_CONFIG is .*No such file"):
        given_settings({"DTR_ALLOC_CONFIG": str(tmp_path / "nowhere.toml")})


def test_a_wrong_variable_is_an_error_even_when_an_argument_wins():
    with pytest.raises(ConfigError, match="DTR_ALLOC_BUDGET"):
        given_settings({"DTR_ALLOC_BUDGET": "much"}, budget="8GiB")


@pytest.mark.parametrize(
    ("text", "report"),
    [
        *(("1", True), ("on", True), ("False", False), ("0", False), ("all", "all")),
        ("out.txt", Path("out.txt")),
    ],
)
def test_a_report_is_a_switch_or_all_or_a_path(text, report):
    assert given_settings({"DTR_ALLOC_REPORT": text}).config.report == report


def test_a_page_needs_matplotlib(monkeypatch):
    monkeypatch.setattr(config, "find_spec", lambda name: None)
    assert given_settings({"DTR_ALLOC_REPORT": "run.txt"}).config.report == Path("run.txt")
    with pytest.raises(ConfigError, match=r"a page .* needs matplotlib"):
        given_settings({"DTR_ALLOC_REPORT": "run.html"})


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        *(("3", Steps(3, 3)), (3, Steps(3, 3)), ("3..5", Steps(3, 5)), (" 3.. ", Steps(3, None))),
        *(("..5", Steps(1, 5)), ("1..1", Steps(1, 1))),
    ],
)
def test_steps_are_counted_from_one_and_both_ends_belong(text, steps):
    assert given_settings({}, log_steps=text).config.log_steps == steps
    assert steps.first in steps
    assert steps.first - 1 not in steps
    assert steps.last is None or (steps.last in steps and steps.last + 1 not in steps)


def test_every_field_can_be_given_in_each_way():
    written = {
        "budget": "60%",
        "device": "cpu",
        "heuristic": "marginal",
        "costs": "c.json",
        "stats": "s.json",
        "report": "r.txt",
        "progress": "1",
        "thrash": "2.5",
        "ranks": "off",
        "trust": "flash_attn,mylib::gelu",
        "swap": "4GiB",
        "pool": "chunk:4MiB,keep:1GiB,fixed,strict",
        "debug": "poison,verify:100,contents,no-moves,guard,tiny:0,rest:0",
        "log": "job.log.xz",
        "log_steps": "3..5",
        "trace": "job.trace",
    }
    assert tuple(written) == FIELDS
    steps = written.pop("log_steps")
    by_variable = {f"DTR_ALLOC_{key.upper()}": text for key, text in written.items()}
    by_argument = given_settings({}, **written, log_steps=steps)
    assert given_settings(by_variable, log_steps=steps).config == by_argument.config
    with pytest.raises(ConfigError, match="DTR_ALLOC_LOG_STEPS"):
        given_settings({"DTR_ALLOC_LOG_STEPS": steps})


def test_there_are_no_more_variables_than_people_can_read():
    assert len(known_variables()) <= 18


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        *(("swap", "off", 0), ("thrash", "off", 0), ("thrash", "2.5", 2.5), ("swap", "0", 0)),
        *(("swap", "16GiB", 2**34), ("pool", " chunk: AUTO ", PoolOptions())),
        ("pool", "fixed, keep:0", PoolOptions(keep=0, fixed=True)),
        ("trace", "a.trace", TraceFile(Path("a.trace"))),
        ("trace", "oom:a.trace", TraceFile(Path("a.trace"), only_at_oom=True)),
        ("trace", "./oom:a.trace", TraceFile(Path("oom:a.trace"))),
        ("pool", "strict", PoolOptions(strict=True)),
        *(("pool", "chunk:2097152,keep:all", PoolOptions(chunk=2**21)), ("debug", "off", Debug())),
        ("debug", " poison , verify:10", Debug(poison=True, verify=10)),
        ("debug", "no-moves,contents", Debug(contents=True, no_moves=True)),
        ("debug", "guard", Debug(guard=True)),
        ("debug", "tiny:1KiB,guard", Debug(guard=True, tiny=1024)),
    ],
)
def test_a_setting_may_be_a_number_or_the_word_for_one(field, text, value):
    found = getattr(given_settings({}, **{field: text}).config, field)
    assert found == value
    assert getattr(given_settings({}, **{field: str(found)}).config, field) == value


def test_sizes_are_shown_in_the_largest_unit_that_fits():
    assert format_size(0) == "0 B"
    assert format_size(1536) == "1.50 KiB"
    assert format_size(8 * 2**30) == "8.00 GiB"
    assert format_size(UNLIMITED_BYTES) == "unlimited"
