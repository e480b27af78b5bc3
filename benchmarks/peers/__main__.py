"""This engine beside those users would pick instead, in one run on this machine.

    python -m benchmarks.peers [--rows streams-4] [--rivals llama.cpp-q4_0] [--rounds 1]

Rivals are installed first, each into a folder of its own ($TOKENMILL_PEERS, else ~/.cache/tokenmill/peers).
Then every engine does every row in a new process, round by round, so that a slow hour meets all of them.
Medians of the rounds count. All answers are greedy and as long as asked for; prompts are token ids, the same
for all and none sent twice, except for llama.cpp without its server: `llama-batched-bench` draws its own, and
is spared choosing tokens.
"""

from __future__ import annotations

import argparse
import datetime
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from benchmarks.peers.contender import Contender, Figures, PeerFailed
from benchmarks.peers.environments import peers_home, say
from benchmarks.peers.limits import Model, fractions
from benchmarks.peers.llama import LlamaCpp
from benchmarks.peers.machine import busy_share, commit, describe
from benchmarks.peers.model_files import MODELS, ModelFiles
from benchmarks.peers.openvino import OpenVino
from benchmarks.peers.ours import Tokenmill
from benchmarks.peers.results import Line, lines
from benchmarks.peers.rows import NAMES, ROWS, Row
from benchmarks.peers.table import render
from benchmarks.peers.vllm import Vllm
from tokenmill.hardware.peaks import Peaks, measure_peaks
from tokenmill.models.source import open_model

RIVALS = ("llama.cpp-q4_1", "llama.cpp-q4_0", "llama.cpp-q8_0", "openvino", "vllm-bf16")
ROUNDS = 3
# Other work above this share of the machine is told of: on two cores a tenth of one decides a row.
BUSY = 0.05
RESULTS = Path(__file__).parent.parent / "results"
# By contender, then by row: what it did in each round.
Seen = dict[str, dict[Row, list[Figures | PeerFailed]]]


def contenders(options: argparse.Namespace, files: ModelFiles) -> list[Contender]:
    """Ours first, then the rivals that were asked for."""
    home = peers_home()
    rivals: list[Contender] = [
        LlamaCpp(home, files, "q4_1"),
        LlamaCpp(home, files, "q4_0"),
        LlamaCpp(home, files, "q8_0"),
        OpenVino(home, files),
        Vllm(home, files),
    ]
    flags = dict(flag.split("=", 1) for flag in options.set)
    return [Tokenmill(files, flags), *(rival for rival in rivals if rival.name in options.rivals)]


def measure(
    field: Sequence[Contender], rows: Sequence[Row], rounds: int, seed: int
) -> tuple[Seen, list[float | None]]:
    """Prepares every contender, then measures round by round; every second round in reverse.

    Returns what each did, and the share of the machine that other work took before each round.
    """
    busy: list[float | None] = []
    seen: Seen = {one.name: {row: [] for row in rows} for one in field}
    ready: list[Contender] = []
    for one in field:
        try:
            one.prepare()
        except Exception as error:
            failed = as_failure(error)
            say(f"{one.name}: {failed}")
            for row in rows:
                seen[one.name][row].append(failed)
        else:
            ready.append(one)
    for number in range(rounds):
        busy.append(busy_share())
        if busy[-1] is not None and busy[-1] > BUSY:
            say(f"other work takes {busy[-1]:.0%} of this machine: figures of this round will be wrong")
        for one in ready if number % 2 == 0 else reversed(ready):
            start = time.monotonic()
            one_round(one, rows, seed + number, seen[one.name])
            say(f"round {number + 1} of {rounds}, {one.name}: {time.monotonic() - start:.0f} s")
    return seen, busy


def one_round(
    one: Contender, rows: Sequence[Row], seed: int, seen: Mapping[Row, list[Figures | PeerFailed]]
) -> None:
    left = list(rows)
    try:
        for row, figures in one.measure(rows, seed):
            left.remove(row)
            seen[row].append(figures)
    except Exception as error:
        for row in left:
            seen[row].append(as_failure(error))


def as_failure(error: Exception) -> PeerFailed:
    """Whatever goes wrong with one engine, the others are measured and its reason is shown."""
    return error if isinstance(error, PeerFailed) else PeerFailed(f"{type(error).__name__}: {error}")


def summarize(seen: Seen, rows: Sequence[Row], ours: str, model: Model, peaks: Peaks | None) -> list[Line]:
    """The lines of the table. Fractions of the limit are given where the machine's peaks are known."""
    found: list[Line] = []
    for row in rows:
        for line in lines(row, {name: done[row] for name, done in seen.items()}, ours):
            if peaks is not None and line.metric == "tokens_per_s" and line.ours is not None:
                line = replace(line, fractions=fractions(row, line.ours, model, peaks))
            found.append(line)
    return found


def known_peaks() -> Peaks | None:
    """The machine's peaks, measured anew only where nothing else runs: load would make them lower."""
    busy = busy_share()
    return measure_peaks(fresh=busy is not None and busy <= BUSY)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.peers", description=__doc__.split("\n")[0] if __doc__ else None
    )
    add = parser.add_argument
    add("--model", choices=MODELS, default=next(iter(MODELS)))
    add("--rows", nargs="+", choices=NAMES, default=NAMES, metavar="ROW", help=", ".join(NAMES))
    add("--rivals", nargs="*", choices=RIVALS, default=RIVALS, metavar="RIVAL", help=", ".join(RIVALS))
    add("--rounds", type=int, default=ROUNDS)
    add("--seed", type=int, default=1, help="of the first round's prompts")
    add(
        "--set",
        action="append",
        default=[],
        metavar="FLAG=VALUE",
        help="a flag of ours, like quantization=int8",
    )
    add("--out", type=Path, help=f"JSON; default {RESULTS.name}/ for a full run, else the rivals' folder")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds must be at least 1, not {options.rounds}")
    for flag in options.set:
        if "=" not in flag:
            parser.error(f"--set takes FLAG=VALUE, not {flag!r}")
    return options


def place(options: argparse.Namespace) -> Path:
    """Where the JSON goes: what is committed is only ever replaced by a full run."""
    if options.out is not None:
        return Path(options.out)
    full = set(options.rows) == set(NAMES) and set(options.rivals) == set(RIVALS)
    folder = RESULTS if full and options.rounds >= ROUNDS and not options.set else peers_home()
    return folder / f"peers-{options.model}.json"


def main() -> int:
    """Exit code 0 when our engine did every row, 1 otherwise."""
    options = read_options()
    start = time.monotonic()
    files = ModelFiles(peers_home(), options.model)
    rows = [row for row in ROWS if row.name in options.rows]
    field = contenders(options, files)
    peaks = known_peaks()
    seen, busy = measure(field, rows, options.rounds, options.seed)
    source = open_model(files.published())
    source.weights.close()
    ours = field[0].name
    found = summarize(seen, rows, ours, Model(source), peaks)
    seconds = time.monotonic() - start
    print(render(found, ours))
    print(f"\n{options.rounds} rounds, {seconds / 60:.1f} minutes")
    document = {
        "command": shlex.join(["python", "-m", "benchmarks.peers", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "model": options.model,
        "rounds": options.rounds,
        "seconds": round(seconds),
        "other_work": busy,
        "machine": describe() | ({"peaks": peaks} if peaks else {}),
        "commit": commit(),
        "versions": {one.name: one.version for one in field},
        "lines": found,
    }
    path = place(options)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")
    print(f"written to {path}", file=sys.stderr)
    return 0 if all(line.ours is not None for line in found) else 1


if __name__ == "__main__":
    sys.exit(main())
