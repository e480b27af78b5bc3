"""What an idle server costs: share of one core and resident memory against the plan.

python benchmarks/idle.py [--seconds 20]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import urllib.request
from pathlib import Path

from tokenmill.bench.process import ServerProcess, tokenmill_command

MIB = 1 << 20


def cpu_seconds(pid: int) -> float:
    """Processor time of a process, user and system: fields 14 and 15 of proc(5)'s stat."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def planned_bytes(url: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics") as page:  # noqa: S310  # the server started here
        for line in page.read().decode().splitlines():
            if line.startswith("tokenmill_memory_bytes") and 'kind="planned"' in line:
                return float(line.split()[-1])
    raise RuntimeError("the server does not tell its planned memory")


async def measure(model: str, seconds: float) -> None:
    async with ServerProcess(tokenmill_command(model)) as server:
        before = cpu_seconds(server.pid)
        await asyncio.sleep(seconds)
        used = cpu_seconds(server.pid) - before
        planned = await asyncio.to_thread(planned_bytes, server.url)
        print(f"idle: {100 * used / seconds:.2f} % of a core over {seconds:.0f} s")
        print(f"memory: {rss_bytes(server.pid) / MIB:.0f} MiB resident, {planned / MIB:.0f} MiB planned")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    options = parser.parse_args()
    asyncio.run(measure(options.model, options.seconds))


if __name__ == "__main__":
    main()
