"""What conda-lock asks of micromamba (`--version`, and `create --dry-run --json`), answered by rattler, for machines where no conda
executable can be had. Everything else of the way is real: PATH, our files, the conda-lock command, and the lock that it writes."""

import asyncio
import json
import os
import sys

import rattler
from rattler.exceptions import SolverError
from rattler.package.build_string import BuildString

OVERRIDE = "CONDA_OVERRIDE_"


def main() -> int:
    if sys.argv[1:] == ["--version"]:
        print("2.3.3")
        return 0
    if sys.argv[1] != "create" or not {"--dry-run", "--json", "--override-channels"} <= set(
        sys.argv
    ):
        raise SystemExit(f"not a question that conda-lock asks: {sys.argv[1:]}")
    arguments = iter(sys.argv[2:])
    channels, specs = [], []
    for argument in arguments:
        if argument == "--channel":
            channels.append(next(arguments))
        elif argument == "--prefix":
            next(arguments)
        elif not argument.startswith("--"):
            specs.append(argument)
    offers = {
        "__" + key[len(OVERRIDE) :].lower(): value
        for key, value in os.environ.items()
        if key.startswith(OVERRIDE) and value
    }
    try:
        result = asyncio.run(solve(channels, specs, offers))
    except SolverError as error:
        print(json.dumps({"success": False, "message": str(error)}))
        return 1
    rows = [row(record) for record in result]
    print(json.dumps({"success": True, "actions": {"FETCH": rows, "LINK": rows}}))
    return 0


async def solve(
    channels: list[str], specs: list[str], offers: dict[str, str]
) -> list[rattler.RepoDataRecord]:
    virtual = [
        rattler.GenericVirtualPackage(
            rattler.PackageName(name), rattler.Version(version), BuildString("0")
        )
        for name, version in offers.items()
    ]
    return await rattler.solve(
        [rattler.Channel(channel) for channel in channels],
        [rattler.MatchSpec(spec) for spec in specs],
        platforms=[os.environ["CONDA_SUBDIR"], "noarch"],  # type: ignore[list-item]
        virtual_packages=virtual,
    )


def row(record: rattler.RepoDataRecord) -> dict[str, object]:
    record_row = {
        "name": record.name.normalized,
        "version": str(record.version),
        "url": record.url,
        "fn": record.file_name,
    }
    hashes = {"md5": record.md5, "sha256": record.sha256}
    return {
        **record_row,
        "depends": list(record.depends),
        **{name: value.hex() for name, value in hashes.items() if value},
    }


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # rattler may crash while the interpreter ends
