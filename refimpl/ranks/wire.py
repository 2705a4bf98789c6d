"""Frames on a socket: a JSON head and plain arrays, between peers that have shown they know the run's secret.

Measured beside multiprocessing.connection and TCPStore, one frame each way is the cheapest that also never unpickles.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import struct
from collections import deque
from typing import Any

import numpy as np

_PREFIX = struct.Struct("!4sIQ")
_MAGIC = b"apx1"
_MAX_HEAD = 64 << 20
_MAX_BODY = 64 << 30
_NONCE_BYTES = 32
_GREETING_SECONDS = 2.0
_SEND_SECONDS = 60

Frame = tuple[dict[str, Any], list[np.ndarray]]


class WireError(ConnectionError):
    """The peer hung up, broke the framing, or does not know the secret."""


def send(sock: socket.socket, head: dict[str, Any], arrays: list[np.ndarray] | None = None) -> None:
    """Send one frame. Raises OSError, also when the peer takes nothing for a minute."""
    arrays = [np.ascontiguousarray(array) for array in arrays or []]
    head = {**head, "arrays": [[array.dtype.str, list(array.shape)] for array in arrays]}
    encoded = json.dumps(head).encode()
    body = sum(array.nbytes for array in arrays)
    start = _PREFIX.pack(_MAGIC, len(encoded), body) + encoded
    if body < 1 << 16:
        sock.sendall(start + b"".join(array.tobytes() for array in arrays))
        return
    sock.sendall(start)
    for array in arrays:
        if array.nbytes:
            sock.sendall(array.data.cast("B"))


class Receiver:
    """Assembles frames from a socket without ever waiting for a peer that stops in the middle of one."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._ready: deque[Frame] = deque()
        self._restart()

    def _restart(self) -> None:
        self._stage = "prefix"
        self._buffer = bytearray(_PREFIX.size)
        self._filled = 0
        self._head: dict[str, Any] = {}
        self._body_size = 0

    def available(self) -> list[Frame]:
        """All frames that have arrived whole. Raises WireError once the peer has hung up."""
        frames: list[Frame] = []
        while True:
            view = memoryview(self._buffer)[self._filled :]
            if len(view):
                try:
                    count = self._sock.recv_into(view, 0, socket.MSG_DONTWAIT)
                except (BlockingIOError, InterruptedError):
                    return frames
                except OSError as error:
                    count, reason = 0, str(error)
                else:
                    reason = "it hung up"
                if count == 0:
                    if frames:
                        return frames  # the hang-up is seen again at the next call
                    raise WireError(reason)
                self._filled += count
                if self._filled < len(self._buffer):
                    continue
            frame = self._advance()
            if frame is not None:
                frames.append(frame)

    def next(self) -> Frame:
        """The next frame, waiting for it without limit. Raises WireError once the peer has hung up."""
        while not self._ready:
            # Peeking is only the wait; what is read is read by available().
            if not self._sock.recv(1, socket.MSG_PEEK):
                raise WireError("it hung up")
            self._ready.extend(self.available())
        return self._ready.popleft()

    def _advance(self) -> Frame | None:
        if self._stage == "prefix":
            magic, head_size, self._body_size = _PREFIX.unpack(self._buffer)
            if magic != _MAGIC or head_size > _MAX_HEAD or self._body_size > _MAX_BODY:
                raise WireError("it does not speak this protocol")
            self._stage, self._buffer, self._filled = "head", bytearray(head_size), 0
            return None
        if self._stage == "head":
            self._head = json.loads(self._buffer.decode())
            self._stage, self._buffer, self._filled = "body", bytearray(self._body_size), 0
            if self._body_size:
                return None
        head, body = self._head, self._buffer
        self._restart()
        arrays, offset = [], 0
        for dtype_name, shape in head.pop("arrays"):
            dtype = np.dtype(dtype_name)
            count = int(np.prod(shape, dtype=np.int64))
            arrays.append(np.frombuffer(body, dtype, count, offset).reshape(shape))
            offset += count * dtype.itemsize
        return head, arrays


def _read_exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            raise WireError("it hung up during the greeting")
        data += part
    return data


def _proof(secret: str, role: bytes, nonce: bytes) -> bytes:
    return hmac.digest(secret.encode(), role + nonce, "sha256")


def greet_as_hub(sock: socket.socket, secret: str) -> None:
    """Prove the secret to a peer and have it proved. Raises WireError or OSError."""
    sock.settimeout(_GREETING_SECONDS)
    nonce = secrets.token_bytes(_NONCE_BYTES)
    sock.sendall(nonce)
    answer = _read_exactly(sock, 32 + _NONCE_BYTES)
    if not hmac.compare_digest(answer[:32], _proof(secret, b"peer", nonce)):
        raise WireError("it does not know the secret of this run")
    sock.sendall(_proof(secret, b"hub", answer[32:]))
    _settle(sock)


def connect(address: tuple[str, int], secret: str, timeout: float) -> socket.socket:
    """Connect to the hub and greet it. Raises WireError or OSError."""
    sock = socket.create_connection(address, timeout=timeout)
    theirs = _read_exactly(sock, _NONCE_BYTES)
    mine = secrets.token_bytes(_NONCE_BYTES)
    sock.sendall(_proof(secret, b"peer", theirs) + mine)
    if not hmac.compare_digest(_read_exactly(sock, 32), _proof(secret, b"hub", mine)):
        raise WireError("the hub does not know the secret of this run")
    _settle(sock)
    return sock


def _settle(sock: socket.socket) -> None:
    """From the greeting to work: reads never wait (MSG_DONTWAIT), sends wait for a limited time."""
    # A Python socket with a timeout waits in poll() even for MSG_DONTWAIT; the kernel's own limit does not.
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_SECONDS, 0))
