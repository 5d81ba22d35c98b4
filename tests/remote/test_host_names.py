"""Host names from the command line and from files: what is taken, what never reaches ssh."""

import os
import re
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topsmon.remote.hostnames import HostNameError, check, gather, parse, read_file, ssh_name

REFUSED = [
    "-oProxyCommand=touch PWNED",
    "-oProxyCommand",
    "a;id",
    "$(id)",
    "`id`",
    "a\nb",
    "a\n",
    "a b",
    "-V",
    "",
    "me@",
    "@a",
    "me@-oProxyCommand",
    "-me@a",
    "a@b@c",
    "ssh://a",
    "a:22",
    "../a",
    "a|b",
    "a&b",
    "a'b",
    'a"b',
    "a\\b",
    "a%h",
    "host\x1b[31m",
    "häst",
    "\N{FULLWIDTH LATIN SMALL LETTER A}",
    "[]",
    "[::1",
    "::1",
    "[::1;id]",
    "[-1]",
    "x" * 256,
]
TAKEN = [
    "a",
    "node1.example.org",
    "my_alias",
    "me@gpu-box",
    "10.0.0.7",
    "[::1]",
    "me@[fe80::1%eth0]",
]


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_be_more_than_a_name_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(HostNameError) as refusal:
        check(name)
    message = str(refusal.value)
    assert message.isascii()
    assert message.isprintable()
    assert len(message) < 400


@pytest.mark.parametrize("name", TAKEN)
def test_names_addresses_and_aliases_are_taken_as_they_are(name: str) -> None:
    assert check(name) == name


def test_ssh_gets_an_address_without_its_brackets() -> None:
    assert [ssh_name(name) for name in TAKEN[-2:]] == ["::1", "me@fe80::1%eth0"]


@given(st.text())
def test_no_text_gets_through_that_ssh_or_a_shell_could_read_otherwise(text: str) -> None:
    try:
        name = check(text)
    except HostNameError:
        return
    assert not name.startswith("-")
    assert "@-" not in name
    assert set(name) <= set(string.ascii_letters + string.digits + "._-@[]:%")


@given(st.text())
def test_every_host_of_a_parsed_list_is_a_checked_name(text: str) -> None:
    try:
        names = parse(text)
    except HostNameError:
        return
    assert names == [check(name) for name in names]


WORD = st.from_regex(re.compile(r"[a-z0-9._][a-z0-9._-]{0,20}", re.ASCII), fullmatch=True)


@given(st.lists(WORD, min_size=1, max_size=20))
def test_a_list_is_split_at_its_commas(names: list[str]) -> None:
    assert parse(",".join(names)) == names


@given(WORD, st.integers(0, 50), st.integers(0, 20), st.integers(1, 4), WORD)
def test_a_range_names_every_number_with_the_width_of_its_first(
    before: str, first: int, more: int, width: int, after: str
) -> None:
    pattern = f"{before}[{first:0{width}}-{first + more}]{after}"
    padded = max(width, len(str(first)))
    expected = [
        f"{before}{str(number).zfill(padded)}{after}" for number in range(first, first + more + 1)
    ]
    assert parse(pattern) == expected


def test_ranges_as_slurm_writes_them() -> None:
    assert parse("node[08-10]") == ["node08", "node09", "node10"]
    assert parse("n[1,3-4]-ib,gpu5") == ["n1-ib", "n3-ib", "n4-ib", "gpu5"]
    assert parse("r[1-2]n[1-2]") == ["r1n1", "r1n2", "r2n1", "r2n2"]
    assert parse("me@node[1-2],[::1]") == ["me@node1", "me@node2", "[::1]"]


@pytest.mark.parametrize(
    "text",
    ["n[3-1]", "n[]", "n[a-b]", "n[1-]", "n[1-2", "n1-2]", "n[1-2]]", "n[[1-2]]", "a,,b", "n[1,]"],
)
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(HostNameError):
        parse(text)


@pytest.mark.parametrize("text", ["n[0-999999999]", "n[0-999999999]m[0-999999999]", "n[1-1001]"])
def test_a_range_is_counted_before_it_is_built(text: str) -> None:
    with pytest.raises(HostNameError, match="topsmon fleet --prometheus"):
        parse(text)


def test_the_same_host_twice_is_one_host_and_the_order_stays(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("c\nb\nd\n")
    assert gather(["b,a", "b"], file) == ("b", "a", "c", "d")


def test_more_hosts_than_ssh_is_good_for_are_refused_with_the_way_out() -> None:
    assert len(gather(["n[1-200]"])) == 200
    with pytest.raises(HostNameError, match=r"201 hosts.*topsmon fleet --prometheus"):
        gather(["n[1-201]"])


def test_no_host_at_all_is_said() -> None:
    with pytest.raises(HostNameError):
        gather([])


def test_a_file_has_one_host_a_line_comments_and_what_mpi_adds(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_bytes(
        b"\xef\xbb\xbf# rack 1\nnode1 slots=8  # first\r\n\r\n  me@node2\nnode[3-4] max_slots=2\n"
    )
    assert read_file(file) == ["node1", "me@node2", "node3", "node4"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a\n-oProxyCommand=id\n", "line 2"),
        (b"a b\n", "one host a line"),
        (b"# nothing\n\n", "no host in it"),
        (b"\xff\xfe", "UTF-8"),
        (b"a\n" * 500_001, "over 1 MB"),
        (b"".join(b"h%d\n" % number for number in range(1001)), "over 1000 hosts"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_name(
    tmp_path: Path, content: bytes, words: str
) -> None:
    file = tmp_path / "hosts"
    file.write_bytes(content)
    with pytest.raises(HostNameError, match=words) as refusal:
        read_file(file)
    assert str(file) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_pipe_or_a_folder_is_not_read_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "missing", Path("/dev/zero")):
        with pytest.raises(HostNameError, match="--hostfile"):
            read_file(path)
