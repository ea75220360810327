"""The certificate files of a farm server: which of them it refuses, and when they expire."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kelek.actors.errors import OperatorError
from kelek.actors.farm.tls import NOTICE_CHECK_MS, FarmTls
from kelek.actors.farm.users import CHECK_INTERVAL_MS
from kelek.actors.topology.farm import NodeFarmSettings
from kelek.net.clock import wall_ms
from kelek.tests.actors.farm.farm_servers import issue_certificate


def tls_of(folder: Path, now_ms: Callable[[], int] = wall_ms) -> FarmTls:
    settings = NodeFarmSettings(
        url="tcp://127.0.0.1:1",
        certificate_file=str(folder / "cert.pem"),
        key_file=str(folder / "key.pem"),
        ca_file=str(folder / "ca.pem"),
    )
    return FarmTls(settings, "t.yaml: nodes.n1.farm.{}".format, now_ms)


def test_a_private_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    issue_certificate(tmp_path, "127.0.0.1")
    assert tls_of(tmp_path).server is not None
    (tmp_path / "key.pem").chmod(0o640)
    with pytest.raises(OperatorError) as refused:
        tls_of(tmp_path)
    key = tmp_path / "key.pem"
    assert str(refused.value) == (
        f"t.yaml: nodes.n1.farm.key_file: others can read {key} (mode 0640); chmod 600 {key}"
    )


START = datetime(2026, 1, 1, tzinfo=UTC)
END = START + timedelta(days=100)


class Days:
    """A wall clock, in days since START."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> int:
        return int((START + timedelta(days=self.now)).timestamp() * 1000)


def test_the_operator_hears_of_the_end_of_a_certificate(tmp_path: Path) -> None:
    """At 30, 7 and 1 days, and when it has come; a new certificate begins anew."""
    issue_certificate(tmp_path, "127.0.0.1", not_after=END)
    days = Days()
    tls, notices, now_ms = tls_of(tmp_path, days), {}, 0
    assert (tls.days_left, tls.warning) == (100, "")
    while days.now < 102:
        found = tls.expiry_notice(now_ms)
        if found is not None:
            notices[days.now] = found
        days.now += 0.25
        now_ms += 6 * NOTICE_CHECK_MS
    assert notices == {70.25: 29, 93.25: 6, 99.25: 0, 100.25: -1}
    assert tls.warning == f"{tmp_path}/cert.pem expired 2 days ago"
    with pytest.raises(OperatorError) as expired:
        tls_of(tmp_path, days)
    assert str(expired.value) == (
        f"t.yaml: nodes.n1.farm.certificate_file: the certificate in {tmp_path}/cert.pem expired "
        "2 days ago; replace it; the server rereads the file"
    )
    issue_certificate(tmp_path, "127.0.0.1", not_after=END + timedelta(days=20))
    assert tls.reload(now_ms)
    assert (tls.days_left, tls.expiry_notice(now_ms)) == (18, 18)
    assert tls.warning == f"{tmp_path}/cert.pem expires in 18 days"


def test_an_expired_certificate_does_not_replace_another_one(tmp_path: Path) -> None:
    issue_certificate(tmp_path, "127.0.0.1", not_after=END)
    days = Days()
    tls = tls_of(tmp_path, days)
    context = tls.server
    issue_certificate(tmp_path, "127.0.0.1", not_after=START + timedelta(days=1))
    days.now = 1
    with pytest.raises(OperatorError, match="expired 0 days ago"):
        tls.reload(CHECK_INTERVAL_MS)
    assert tls.server is context
    assert tls.days_left == 99
