"""One host's stream through ssh: what is sent, what is understood, how it ends and comes back."""

import asyncio
import shlex
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from fake_ssh import FakeSsh, device, hello, lines, sample
from hypothesis import given
from hypothesis import strategies as st
from waiting import alive, until

from topsmon import events
from topsmon.remote import link as link_module
from topsmon.remote.gate import Gate, pause
from topsmon.remote.greeting import greeting, refusal
from topsmon.remote.link import Link
from topsmon.remote.ssh import CommandError, LinkOptions, command, explain, remote_words, ssh_words

STREAM = hello() + "\n" + lines(device(), sample())


class Heard:
    """What a link says of its host."""

    def __init__(self) -> None:
        self.events: list[events.AnyEvent] = []
        self.told: list[tuple[str, str]] = []

    def tell(self, condition: str, detail: str) -> None:
        self.told.append((condition, detail))

    @property
    def condition(self) -> str:
        return self.told[-1][0] if self.told else ""

    @property
    def detail(self) -> str:
        return self.told[-1][1]

    def conditions(self) -> list[str]:
        return [condition for condition, _ in self.told]

    def samples(self) -> list[events.DeviceSample]:
        return [event for event in self.events if isinstance(event, events.DeviceSample)]


@asynccontextmanager
async def linked(
    host: str = "a", options: LinkOptions | None = None
) -> AsyncIterator[tuple[Link, Heard]]:
    heard = Heard()
    link = Link(host, options or LinkOptions(), Gate(), heard.events.append, heard.tell)
    link.start()
    try:
        yield link, heard
    finally:
        await link.stop()


# The command line ---------------------------------------------------------------------------------


def test_the_command_is_an_option_free_host_behind_two_dashes_and_one_quoted_word() -> None:
    options = LinkOptions(ssh=("ssh", "-F", "my file"), only=("0", "a;id"), interval=0.5)
    words = command("me@[::1]", options)
    assert words[:3] == ["ssh", "-F", "my file"]
    assert words[-3:-1] == ["--", "me@::1"]
    start = ["topsmon", "stream", "--until-stdin-closes", "--interval", "0.5"]
    assert shlex.split(words[-1]) == [*start, "--only", "0", "--only", "a;id"]
    assert "-oBatchMode=yes" in words
    assert not any("StrictHostKeyChecking" in word for word in words)


@given(st.text(min_size=1, max_size=40))
def test_no_remote_command_can_say_more_than_words(text: str) -> None:
    try:
        words = remote_words(text)
    except CommandError:
        return
    assert shlex.join(words) == " ".join(words)
    assert not words[0].startswith("-")


def test_a_path_in_the_home_folder_is_one_of_the_folder_that_ssh_starts_in() -> None:
    assert remote_words("~/venv/bin/python -m topsmon") == ("./venv/bin/python", "-m", "topsmon")


@pytest.mark.parametrize("text", ["", "  ", "a;b", "$(id)", "a|b", "-x", "~you/topsmon", "a\nb;c"])
def test_remote_commands_that_a_shell_would_read_are_refused(text: str) -> None:
    with pytest.raises(CommandError) as refusal:
        remote_words(text)
    assert str(refusal.value).isprintable()


def test_ssh_is_split_as_a_shell_would() -> None:
    assert ssh_words("ssh -F 'a b'") == ("ssh", "-F", "a b")
    for text in ("", "  ", "'open", "ssh ''"):
        with pytest.raises(CommandError):
            ssh_words(text)


# How it ends --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "stderr", "condition", "words"),
    [
        (127, "sh: 1: topsmon: not found", "refused", "install topsmon on a"),
        (126, "Permission denied", "refused", "install topsmon on a"),
        (255, "ssh: connect to host a port 22: Connection refused", "gone", "Connection refused"),
        (255, "me@a: Permission denied (publickey).", "refused", "run `ssh a` once"),
        (255, "Host key verification failed.", "refused", "run `ssh a` once"),
        (255, "", "gone", "ssh ended without a message"),
        (64, "topsmon: --only: no device '7'", "refused", "no device '7'"),
        (1, "Traceback", "gone", "exit code 1 (Traceback)"),
        (-9, "", "gone", "SIGKILL"),
        (None, "ssh: No such file or directory", "refused", "install OpenSSH"),
    ],
)
def test_every_ending_says_what_happened_and_what_to_do(
    code: int | None, stderr: str, condition: str, words: str
) -> None:
    ending = explain("a", code, ["earlier", stderr] if stderr else [], LinkOptions())
    assert ending.condition == condition
    assert words in ending.detail


def test_what_the_other_side_prints_cannot_move_the_cursor() -> None:
    ending = explain("a", 255, ["\x1b[2J\x1b]0;owned\x07 gone"], LinkOptions())
    assert ending.detail.isprintable()


def test_the_pauses_double_from_half_a_second_to_half_a_minute() -> None:
    pauses = [pause(number, refused=False) for number in range(1, 9)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert pause(1000, refused=False) == 30.0
    assert pause(1, refused=True) > 30.0


# What is understood -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line", [b"", b"Welcome", b"{", b"{}", b'{"type":"sample"}', b"[1]", b'{"schema":1}', b"\xff{"]
)
def test_a_banner_is_no_hello(line: bytes) -> None:
    assert greeting(line) is None


def test_other_versions_of_the_schema_are_understood_and_other_schemas_refused() -> None:
    def read(**changes: object) -> str | None:
        found = greeting(hello(**changes).encode())
        assert found is not None
        return refusal("a", found)

    assert read(version="0.0.1") is None
    assert read(version="9.9", a_new_field={"x": 1}) is None
    newer, older = read(version="9.9", schema=2), read(version="0.0.1", schema=0)
    assert newer is not None
    assert "9.9" in newer
    assert newer.endswith("update topsmon here")
    assert older is not None
    assert older.endswith("update topsmon on a")


async def test_a_banner_and_noise_before_the_stream_are_skipped(ssh: FakeSsh) -> None:
    ssh.plays("a", 'echo Welcome; echo "{}"; echo; say stream; wait_for_end', stream=STREAM)
    async with linked() as (_, heard):
        await until(lambda: bool(heard.samples()))
        assert heard.conditions() == ["connecting", "live"]
        assert isinstance(heard.events[0], events.Hello)
        assert heard.samples()[0].busy_ratio == 0.25
    assert ssh.arguments("a") == command("a", LinkOptions())[1:]


async def test_garbage_huge_lines_and_news_of_later_versions_cost_nothing(ssh: FakeSsh) -> None:
    ssh.plays(
        "a",
        "say stream; echo '{\"type\":'; say later; head -c 5000000 /dev/zero | tr '\\0' x; echo; "
        "say more; wait_for_end",
        stream=STREAM,
        later='{"type":"of-the-future","x":1}\n{"type":"sample","device":3}\n\x01\x02\n',
        more=lines(sample(busy=0.75)),
    )
    async with linked() as (link, heard):
        await until(lambda: len(heard.samples()) == 2)
        assert heard.samples()[1].busy_ratio == 0.75
        assert heard.condition == "live"
        assert link.decoder.skipped == 1
        assert link.decoder.malformed >= 4


async def test_another_schema_is_refused_in_words(ssh: FakeSsh) -> None:
    ssh.plays("a", "say stream; wait_for_end", stream=hello(schema=2, version="3.0") + "\n")
    async with linked() as (link, heard):
        await until(lambda: heard.condition == "refused")
        assert "3.0" in heard.detail
        assert not heard.events
        await until(lambda: link.pid is None)


async def test_a_login_that_never_becomes_a_stream_is_said(
    ssh: FakeSsh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "HELLO_SECONDS", 0.5)
    ssh.plays("a", "echo Enter your token:; exec sleep 60")
    async with linked() as (_, heard):
        # An ssh that has said nothing by then is tried again.
        await until(lambda: heard.condition == "gone" and "Enter your token" in heard.detail)
        assert "no event stream" in heard.detail
    await until(lambda: not alive(ssh.pids("a")[0]))


async def test_without_topsmon_there_the_way_to_it_is_told(ssh: FakeSsh) -> None:
    ssh.plays("a", "echo 'sh: 1: topsmon: not found' >&2; exit 127")
    async with linked() as (_, heard):
        await until(lambda: heard.condition == "refused")
        assert "install topsmon on a" in heard.detail


async def test_a_closed_account_is_told_by_its_own_words(ssh: FakeSsh) -> None:
    ssh.plays("a", "echo This account is currently not available.; exit 1")
    async with linked() as (_, heard):
        await until(lambda: heard.condition == "gone")
        assert "not available" in heard.detail


async def test_no_ssh_at_all_is_said() -> None:
    async with linked(options=LinkOptions(ssh=("/no/such/ssh",))) as (_, heard):
        await until(lambda: heard.condition == "refused")
        assert "/no/such/ssh" in heard.detail


async def test_a_lost_host_is_tried_again_until_it_is_back(ssh: FakeSsh) -> None:
    ssh.plays(
        "a",
        '[ "$attempt" = 2 ] && { echo "Connection refused" >&2; exit 255; }\n'
        'say stream\n[ "$attempt" = 3 ] && wait_for_end\n'
        "echo 'Timeout, server a not responding.' >&2; exit 255",
        stream=STREAM,
    )
    async with linked() as (_, heard):
        await until(lambda: heard.conditions().count("live") == 2)
    assert heard.told == [
        ("connecting", ""),
        ("live", ""),
        ("gone", "Timeout, server a not responding."),
        ("gone", "Connection refused"),
        ("live", ""),
    ]


# Stopping -----------------------------------------------------------------------------------------


async def test_the_other_side_is_told_to_stop_and_its_input_ends(
    ssh: FakeSsh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "STOP_GRACE_SECONDS", 60.0)
    ssh.plays("a", "say stream; wait_for_end", stream=STREAM)
    async with linked() as (link, heard):
        await until(lambda: heard.condition == "live")
        link.send(command="interval", seconds=2.0)
    await until(lambda: {"command": "stop"} in ssh.commands("a"))
    assert {"command": "interval", "seconds": 2.0} in ssh.commands("a")
    assert link.pid is None
    assert heard.condition == "live"


async def test_an_ssh_that_listens_to_nothing_is_killed(ssh: FakeSsh) -> None:
    ssh.plays("a", "trap '' TERM\nsay stream\nwhile :; do sleep 0.1; done", stream=STREAM)
    async with linked() as (_, heard):
        await until(lambda: heard.condition == "live")
    await until(lambda: not alive(ssh.pids("a")[0]))


@pytest.mark.parametrize(
    "script", ["exec sleep 60", "exit 255", "say stream; wait_for_end", "say stream; exit 0"]
)
async def test_stopping_at_any_moment_ends(ssh: FakeSsh, script: str) -> None:
    ssh.plays("a", script, stream=STREAM)
    for wait in (0.0, 0.01, 0.06, 0.2):
        link = Link("a", LinkOptions(), Gate(), lambda _: None, lambda *_: None)
        link.start()
        await asyncio.sleep(wait)
        await asyncio.wait_for(link.stop(), 60)
        assert not link.running
        await until(lambda link=link: link.pid is None)  # type: ignore[misc]
        await link.stop()


async def test_only_so_many_connect_at_a_time() -> None:
    gate, inside, most = Gate(3, 0.0), 0, 0
    full = asyncio.Event()

    async def connect() -> None:
        nonlocal inside, most
        async with gate:
            inside += 1
            most = max(most, inside)
            if inside == 3:
                full.set()
            await asyncio.wait_for(full.wait(), 60)
            await asyncio.sleep(0.01)
            inside -= 1

    await asyncio.gather(*(connect() for _ in range(12)))
    assert most == 3


async def test_a_connect_that_is_given_up_leaves_its_place() -> None:
    gate = Gate(1, 0.0)

    async def connect(enough: Callable[[], bool]) -> None:
        async with gate:
            while not enough():
                await asyncio.sleep(0.001)

    first = asyncio.create_task(connect(lambda: False))
    waiting = asyncio.create_task(connect(lambda: False))
    await asyncio.sleep(0.01)
    waiting.cancel()
    first.cancel()
    await asyncio.wait_for(connect(lambda: True), 60)
