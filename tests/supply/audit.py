"""Known vulnerabilities of locked packages: what pip-audit finds, and whether it could look at all.

    python -m kelek.tests.supply.audit PIP-AUDIT LOCK...

Exits 0 when the index knows each package and no vulnerability of any; 1 otherwise, also when it
can't be reached or does not know a package: no answer is no good answer.
"""

import json
import subprocess
import sys
from typing import Any

AUDIT_S = 600
OPTIONS = ["--require-hashes", "--disable-pip", "--progress-spinner", "off", "--format", "json"]


def findings(report: dict[str, Any]) -> list[str]:
    """One line for each vulnerability and each package without an answer, of pip-audit's JSON."""
    found = []
    for package in report["dependencies"]:
        if "skip_reason" in package:
            found.append(f"{package['name']}: no answer: {package['skip_reason']}")
        for known in package.get("vulns", []):
            fixed = ", ".join(known["fix_versions"]) or "no version"
            name = f"{package['name']} {package['version']}"
            found.append(f"{name}: {known['id']}, fixed by {fixed}")
    return found


def audit(command: str, lock: str) -> list[str]:
    """Runs pip-audit on a lock file; returns what is wrong, a line each."""
    try:
        done = subprocess.run(
            [command, *OPTIONS, "--requirement", lock],
            capture_output=True, text=True, timeout=AUDIT_S, check=False,
        )  # fmt: skip
        report = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return [f"{lock}: the advisory service did not answer within {AUDIT_S} s"]
    except ValueError:
        reason = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        return [f"{lock}: the advisory service can't be asked: {reason}"]
    if not report["dependencies"]:
        return [f"{lock}: no packages were audited"]
    return [f"{lock}: {line}" for line in findings(report)]


def main(arguments: list[str]) -> int:
    command, *locks = arguments
    problems = [line for lock in locks for line in audit(command, lock)]
    unanswered = sum("no answer" in line or "advisory service" in line for line in problems)
    print(*problems, sep="\n")
    print(
        f"audit of {len(locks)} lock files: {len(problems) - unanswered} known vulnerabilities, "
        f"{unanswered} times no answer from the advisory service"
    )
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
