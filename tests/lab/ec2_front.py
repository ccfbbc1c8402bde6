"""Front before moto's EC2: what moto lacks of the real API, faults on order, and the ledger that is the oracle of tests.

moto alone passes wrong clients: it makes two instances for one client token, has no metadata service by caller, and
accepts any instance type. The front runs in the test's process, so a test reads `ledger` and orders faults directly.

    front.order(Fault("RunInstances", "lost"))      the next request is carried out, and its reply never comes
    front.ledger.alive()                            what costs money now, whatever lists show
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import socket
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlencode
from xml.etree import ElementTree as ET

from tests.lab.ec2_ledger import Fault, FaultKind, Instance, Ledger, metadata_of

__all__ = ["Ec2Front", "Fault", "FaultKind", "Instance", "Ledger", "Reply"]

Query = dict[str, str]

_SCOPE = "20260101/us-west-2/ec2/aws4_request"
_AUTHORISATION = f"AWS4-HMAC-SHA256 Credential=test/{_SCOPE}, SignedHeaders=host, Signature=0"
_FORM = "application/x-www-form-urlencoded"
_SESSION = "lab-session"


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer of the API."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Ec2Front:
    """HTTP server before a moto server.

    Args:
        address: where it listens; port 0: any.
        moto_port: port of moto on this machine.
        subnets: subnets for instances without one, by zone; empty: moto decides.

    Attributes:
        on_run: called with each new instance.
        on_end: called with the id of each instance that was ended through the API.
        on_key: called with the public part of each key pair.
        on_call: called with an action before and after it is carried out, `before` or `after`.
        ending_s: how long a terminated instance is listed as `shutting-down`; it is charged until the request.
    """

    def __init__(self, address: tuple[str, int], moto_port: int, subnets: Mapping[str, str] | None = None) -> None:
        self._address, self._moto_port = address, moto_port
        self.subnets = dict(subnets or {})
        self.ledger = Ledger()
        self.calls: Counter[str] = Counter()
        self.ending_s = 0.0
        self.on_run: Callable[[Instance], None] = lambda instance: None
        self.on_end: Callable[[str], None] = lambda name: None
        self.on_key: Callable[[str], None] = lambda public: None
        self.on_call: Callable[[str, str], None] = lambda action, phase: None
        self._lock = threading.RLock()
        self._faults: list[Fault] = []
        self._tokens: dict[tuple[str, str], tuple[Query, Reply]] = {}
        self._server: ThreadingHTTPServer | None = None
        self._known_types: dict[tuple[str, str], bool] = {}

    # ----------------------------------------------------------------------------------------------------- the test's

    def start(self) -> None:
        """Listen; a closed one listens again at the same address and knows what it knew."""
        server = ThreadingHTTPServer(self._address, _handler(self))
        server.daemon_threads = True
        self._address = (self._address[0], server.server_address[1])
        self._server = server
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        """Stop listening: from now on connections are refused. Idempotent."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    @property
    def url(self) -> str:
        """Return its address."""
        return f"http://{self._address[0]}:{self._address[1]}"

    def order(self, *faults: Fault) -> None:
        """Order faults; the first that fits a request happens."""
        with self._lock:
            self._faults.extend(faults)

    def clear(self) -> list[Fault]:
        """Cancel all faults; return those that were left."""
        with self._lock:
            left, self._faults = self._faults, []
        return [fault for fault in left if fault.do != "lie"]

    def interrupt(self, name: str, notice_s: float = 120.0, *, is_rebalanced: bool = False) -> None:
        """Announce the end of a spot instance, and end it after the notice."""
        found = self.ledger.get(name)
        assert found is not None, name
        found.notice_at = time.time() + notice_s
        found.is_rebalanced = is_rebalanced
        timer = threading.Timer(notice_s, self._take_back, [name])
        timer.daemon = True
        timer.start()

    def end_by_itself(self, name: str) -> None:
        """Record that an instance shut itself down, which ends or stops it as its shutdown behaviour says."""
        found = self.ledger.get(name)
        if found is None:
            return
        action = "TerminateInstances" if found.behaviour == "terminate" else "StopInstances"
        self.ledger.end(name, "shut down by itself")
        self.ask({"Action": action, "InstanceId.1": name}, region=found.region)

    def ask(self, query: Query, *, region: str = "us-west-2") -> Reply:
        """Return moto's own answer, without faults and without the ledger."""
        text = _AUTHORISATION.replace("us-west-2", region)
        headers = {"Authorization": text, "Content-Type": _FORM, "Host": f"ec2.{region}.amazonaws.com"}
        return self.forward("POST", "/", urlencode({"Version": "2016-11-15", **query}).encode(), headers)

    # -------------------------------------------------------------------------------------------------- the handler's

    def forward(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        """Pass a request on to moto."""
        connection = http.client.HTTPConnection("127.0.0.1", self._moto_port, timeout=60)
        try:
            kept = {name: value for name, value in headers.items() if name.lower() not in _HOP}
            connection.request(method, path, body or None, kept)
            answer = connection.getresponse()
            content = answer.read()
            return Reply(answer.status, {k: v for k, v in answer.getheaders() if k.lower() not in _HOP}, content)
        finally:
            connection.close()

    def serve(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Reply | None:
        """Answer a request of the API; None: close the connection without an answer."""
        is_ec2 = "/ec2/aws4_request" in headers.get("Authorization", "")
        query = dict(parse_qsl(body.decode("latin-1"), keep_blank_values=True)) if is_ec2 else {}
        action = query.get("Action", "")
        if not action:
            return self.forward(method, path, body, headers)
        self.calls[action] += 1
        self.on_call(action, "before")
        fault = self._fault(action, query, _region(headers))
        if fault is not None and fault.do == "error":
            return _error(fault.code, fault.message, fault.status)
        if fault is not None and fault.do == "dropped":
            return None
        if fault is not None and fault.do == "delay":
            time.sleep(fault.seconds)
        reply = self._carry_out(action, query, headers)
        self.on_call(action, "after")
        return None if fault is not None and fault.do == "lost" else reply

    def metadata(self, method: str, path: str, headers: Mapping[str, str], caller: str) -> Reply:
        """Answer a request to the instance metadata service, version 2, by the caller's address."""
        if path == "api/token":
            return Reply(200 if method == "PUT" else 405, {}, _SESSION.encode() if method == "PUT" else b"")
        if headers.get("X-aws-ec2-metadata-token") != _SESSION:
            return Reply(401, {}, b"")
        instance = next((each for each in reversed(self.ledger.all()) if each.address == caller), None)
        found = "" if instance is None else metadata_of(instance).get(path, "")
        return Reply(200 if found else 404, {"Content-Type": "text/plain"}, found.encode("latin-1"))

    # ------------------------------------------------------------------------------------------------------- private

    def _take_back(self, name: str) -> None:
        found = self.ledger.get(name)
        if found is not None and self.ledger.end(name, "interrupted"):
            self.ask({"Action": "TerminateInstances", "InstanceId.1": name}, region=found.region)
            self.on_end(name)

    def _fault(self, action: str, query: Query, region: str) -> Fault | None:
        with self._lock:
            for fault in self._faults:
                if fault.do == "lie" or fault.action not in {action, "*"} or fault.region not in {"", region}:
                    continue
                if not all(re.fullmatch(pattern, query.get(name, "")) for name, pattern in fault.match.items()):
                    continue
                if fault.skip > 0:
                    fault.skip -= 1
                    continue
                fault.times -= 1
                if fault.times <= 0:
                    self._faults.remove(fault)
                return fault
        return None

    def _hidden(self) -> set[str]:
        """Return the instances that a lie hides now."""
        now_s, now = time.monotonic(), time.time()
        with self._lock:
            lies = [each for each in self._faults if each.do == "lie" and each.ordered_s + each.seconds_long > now_s]
        young_s = max((lie.seconds for lie in lies), default=0.0)
        return {each.id for each in self.ledger.all() if now - each.born_at < young_s}

    def _carry_out(self, action: str, query: Query, headers: Mapping[str, str]) -> Reply:
        if action == "RunInstances" and query.get("DryRun") != "true":
            return self._run(query, headers)
        if action == "DescribeInstances":
            return self._describe(query, headers)
        if action in {"TerminateInstances", "StopInstances"}:
            return self._finish(action, query, headers)
        reply = self.forward("POST", "/", _form(query), headers)
        if reply.status == 200 and action in {"ImportKeyPair", "CreateKeyPair"}:
            self.on_key(_public_key(query, reply))
        return reply

    def _run(self, query: Query, headers: Mapping[str, str]) -> Reply:
        region = _region(headers)
        token = query.get("ClientToken", "")
        shape = {name: value for name, value in query.items() if name != "ClientToken"}
        with self._lock:  # one at a time: a token cannot race with itself
            if (region, token) in self._tokens:
                known, reply = self._tokens[region, token]
                message = "Arguments on this idempotent request are inconsistent with those of a previous one"
                return reply if known == shape else _error("IdempotentParameterMismatch", message, 400)
            if not self._is_known(query.get("InstanceType", ""), region):
                text = f"Invalid value '{query.get('InstanceType')}' for InstanceType."
                return _error("InvalidParameterValue", text, 400)
            asked_at = time.time()
            reply = self.forward("POST", "/", _form(self._with_subnet(query, region)), headers)
            if reply.status != 200:
                return reply
            instances = [_instance(each, query, region, asked_at) for each in _items(reply, "instancesSet")]
            for instance in instances:
                self.ledger.add(instance)
            if token:
                self._tokens[region, token] = shape, reply
        for instance in instances:
            self.on_run(instance)
        return reply

    def _is_known(self, kind: str, region: str) -> bool:
        if (kind, region) not in self._known_types:
            query = {"Action": "DescribeInstanceTypeOfferings", "Filter.1.Name": "instance-type"}
            reply = self.ask({**query, "Filter.1.Value.1": kind}, region=region)
            self._known_types[kind, region] = f"<instanceType>{kind}</instanceType>".encode() in reply.body
        return self._known_types[kind, region]

    def _with_subnet(self, query: Query, region: str) -> Query:
        """Return the request with the lab's subnet of the zone, if it names none, as a default subnet does."""
        place = "NetworkInterface.1.SubnetId" if "NetworkInterface.1.DeviceIndex" in query else "SubnetId"
        if place in query or not self.subnets:
            return query
        first = next((zone for zone in self.subnets if zone.startswith(region)), f"{region}a")
        zone = query.get("Placement.AvailabilityZone") or first
        return {**query, place: self.subnets.get(zone, f"no-subnet-in-{zone}")}

    def _describe(self, query: Query, headers: Mapping[str, str]) -> Reply:
        """Return moto's answer: by token, without what a lie hides, with lasting ends and reasons as EC2 has them."""
        hidden = self._hidden()
        asked = [value for name, value in query.items() if name.startswith("InstanceId.")]
        lost = [name for name in asked if name in hidden]
        if lost:
            text = f"The instance ID '{lost[0]}' does not exist"
            return _error("InvalidInstanceID.NotFound", text, 400)
        tokens, rest = _without_token_filter(query)
        reply = self.forward("POST", "/", _form(rest), headers)
        if reply.status != 200:
            return reply
        root = ET.fromstring(reply.body)
        for reservations in root.iter(_tag(root, "reservationSet")):
            for reservation in list(reservations):
                instances = reservation.find(_tag(root, "instancesSet"))
                for item in [] if instances is None else list(instances):
                    name = item.findtext(_tag(root, "instanceId")) or ""
                    known = self.ledger.get(name)
                    is_other = tokens is not None and (known is None or known.token not in tokens)
                    if name in hidden or is_other:
                        instances.remove(item)  # type: ignore[union-attr]
                    elif known is not None:
                        self._correct(root, item, known)
                if instances is None or not len(instances):
                    reservations.remove(reservation)
        ET.register_namespace("", root.tag[1:].partition("}")[0])
        return Reply(200, reply.headers, ET.tostring(root))

    def _correct(self, root: ET.Element, item: ET.Element, known: Instance) -> None:
        if known.is_spot and item.find(_tag(root, "spotInstanceRequestId")) is None:
            ET.SubElement(item, _tag(root, "spotInstanceRequestId")).text = f"sir-{known.id[2:10]}"
        if known.why == "interrupted":
            reason = item.find(_tag(root, "stateReason"))
            for part in [] if reason is None else list(reason):
                is_code = part.tag.endswith("code")
                part.text = "Server.SpotInstanceTermination" if is_code else "Server.SpotInstanceTermination: reclaimed"
        if known.ended_at is not None and time.time() < known.ended_at + self.ending_s:
            state = item.find(_tag(root, "instanceState"))
            for part in [] if state is None else list(state):
                part.text = "32" if part.tag.endswith("code") else "shutting-down"

    def _finish(self, action: str, query: Query, headers: Mapping[str, str]) -> Reply:
        names = [value for name, value in query.items() if name.startswith("InstanceId.")]
        lost = [name for name in names if name in self._hidden()]
        if lost:
            return _error("InvalidInstanceID.NotFound", f"The instance ID '{lost[0]}' does not exist", 400)
        asked_at = time.time()
        reply = self.forward("POST", "/", _form(query), headers)
        if reply.status == 200:
            for name in names:
                why = "terminated" if action == "TerminateInstances" else "stopped"
                self.ledger.end(name, why, slack_s=time.time() - asked_at)
                self.on_end(name)
        return reply


_HOP = frozenset({"host", "content-length", "connection", "transfer-encoding", "date", "server", "expect"})


def _handler(front: Ec2Front) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Print nothing."""

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except (BrokenPipeError, ConnectionResetError):  # a client that was killed
                self.close_connection = True

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = dict(self.headers.items())
            _, is_metadata, path = self.path.partition("/latest/")
            if self.path.startswith("/lab/"):
                reply = _control(front, self.command, self.path[len("/lab/") :], body)
            elif is_metadata:
                reply = front.metadata(self.command, path.rstrip("/"), _capitals(headers), str(self.client_address[0]))
            else:
                found = front.serve(self.command, self.path, body, headers)
                if found is None:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                reply = found
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)

        do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _serve  # noqa: N815 - http.server finds them by name

    return Handler


def _control(front: Ec2Front, method: str, path: str, body: bytes) -> Reply:
    """Answer another process than the test's, which has no `Ec2Front`: POST faults and interrupt, GET ledger."""
    asked = json.loads(body or b"{}")
    answer: object = {}
    if (method, path) == ("POST", "faults"):
        front.order(*(Fault(**each) for each in asked))
    elif (method, path) == ("DELETE", "faults"):
        front.clear()
    elif (method, path) == ("POST", "interrupt"):
        front.interrupt(asked["id"], asked.get("notice", 120.0), is_rebalanced=asked.get("rebalance", False))
    elif (method, path) == ("GET", "ledger"):
        answer = front.ledger.describe()
    else:
        return Reply(404, {}, b"")
    return Reply(200, {"Content-Type": "application/json"}, json.dumps(answer).encode())


def _capitals(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the header of sessions as the metadata service's documentation writes it; clients vary."""
    return {
        "X-aws-ec2-metadata-token" if name.lower() == "x-aws-ec2-metadata-token" else name: value
        for name, value in headers.items()
    }


def _form(query: Query) -> bytes:
    return urlencode(query).encode()


def _region(headers: Mapping[str, str]) -> str:
    found = re.search(r"Credential=[^/]+/\d+/([^/]+)/", headers.get("Authorization", ""))
    return found[1] if found else "us-west-2"


def _error(code: str, message: str, status: int) -> Reply:
    text = f"<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors>"
    return Reply(status, {"Content-Type": "text/xml"}, f"{text}<RequestID>lab</RequestID></Response>".encode())


def _tag(root: ET.Element, name: str) -> str:
    return f"{root.tag.partition('}')[0]}}}{name}"


def _items(reply: Reply, name: str) -> list[ET.Element]:
    root = ET.fromstring(reply.body)
    return [item for found in root.iter(_tag(root, name)) for item in found]


def _instance(item: ET.Element, query: Query, region: str, asked_at: float) -> Instance:
    def text(name: str) -> str:
        return next((each.text or "" for each in item.iter() if each.tag.rpartition("}")[2] == name), "")

    born_at = time.time()
    return Instance(
        id=text("instanceId"),
        type=query["InstanceType"],
        zone=text("availabilityZone"),
        address=text("privateIpAddress"),
        token=query.get("ClientToken", ""),
        is_spot=query.get("InstanceMarketOptions.MarketType") == "spot",
        behaviour=query.get("InstanceInitiatedShutdownBehavior", "stop"),
        profile=query.get("IamInstanceProfile.Name", "") or query.get("IamInstanceProfile.Arn", "").rpartition("/")[2],
        region=region,
        born_at=born_at,
        slack_s=born_at - asked_at,
        user_data=base64.b64decode(query.get("UserData", "")),
    )


def _without_token_filter(query: Query) -> tuple[set[str] | None, Query]:
    """Return the tokens of a filter that moto lacks, and the query without it."""
    numbers = sorted({int(found[1]) for name in query if (found := re.match(r"Filter\.(\d+)\.Name", name))})
    rest = {name: value for name, value in query.items() if not name.startswith("Filter.")}
    tokens: set[str] | None = None
    kept = 0
    for number in numbers:
        values = [value for name, value in query.items() if name.startswith(f"Filter.{number}.Value.")]
        if query[f"Filter.{number}.Name"] == "client-token":
            tokens = set(values)
            continue
        kept += 1
        rest[f"Filter.{kept}.Name"] = query[f"Filter.{number}.Name"]
        rest |= {f"Filter.{kept}.Value.{place}": value for place, value in enumerate(values, 1)}
    return tokens, rest


def _public_key(query: Query, reply: Reply) -> str:
    if query["Action"] == "ImportKeyPair":
        return base64.b64decode(query["PublicKeyMaterial"]).decode()
    root = ET.fromstring(reply.body)
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(root.findtext(_tag(root, "keyMaterial")) or "")
        file.flush()
        Path(file.name).chmod(0o600)
        return subprocess.run(["ssh-keygen", "-y", "-f", file.name], capture_output=True, text=True, check=True).stdout
