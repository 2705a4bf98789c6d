"""Frames, greetings, and peers that do neither as they should."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from refimpl.ranks import wire
from refimpl.ranks.hub import Hub


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    yield left, right
    left.close()
    right.close()


ARRAYS = [
    np.arange(6, dtype=np.int64).reshape(2, 3),
    np.zeros((0, 4), dtype=np.uint16),
    np.array([[0x7FC1]], dtype=np.uint16),
    np.arange(100_000, dtype=np.uint32)[::2],
]


def test_frames_arrive_as_they_were_sent(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    sender = threading.Thread(target=lambda: [wire.send(left, {"n": n}, ARRAYS) for n in range(3)])
    sender.start()
    receiver = wire.Receiver(right)
    for n in range(3):
        head, arrays = receiver.next()
        assert head == {"n": n}
        for sent, got in zip(ARRAYS, arrays, strict=True):
            assert got.dtype == sent.dtype
            np.testing.assert_array_equal(got, sent)
    sender.join()


def test_a_frame_in_pieces_never_makes_the_receiver_wait(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    wire.send(left, {"a": 1}, [np.arange(5)])
    data = right.recv(4096)
    receiver = wire.Receiver(right)
    for byte in data[:-1]:
        left.sendall(bytes([byte]))
        assert receiver.available() == []
    left.sendall(data[-1:])
    [(head, arrays)] = receiver.available()
    assert head == {"a": 1} and arrays[0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", struct.pack("!4sIQ", b"apx1", 1 << 31, 0)])
def test_what_is_no_frame_is_an_error(pair: tuple[socket.socket, socket.socket], data: bytes) -> None:
    left, right = pair
    left.sendall(data)
    with pytest.raises(wire.WireError):
        wire.Receiver(right).available()


def test_a_hang_up_is_told_after_the_frames_before_it(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    wire.send(left, {"last": True})
    left.close()
    receiver = wire.Receiver(right)
    assert receiver.available()[0][0] == {"last": True}
    with pytest.raises(wire.WireError):
        receiver.available()


def test_nothing_is_ever_unpickled(pair: tuple[socket.socket, socket.socket]) -> None:
    left, right = pair
    head = b'{"arrays": [["|O", [1]]]}'
    left.sendall(struct.pack("!4sIQ", b"apx1", len(head), 8) + head + b"x" * 8)
    with pytest.raises(ValueError, match="OBJECT array"):
        wire.Receiver(right).available()


def _in_thread(work: object) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)  # type: ignore[arg-type]
    thread.start()
    return thread


def test_the_hub_hears_only_who_knows_the_secret() -> None:
    hub = Hub("127.0.0.1", "right")
    try:
        refused: list[Exception] = []

        def intrude() -> None:
            try:
                sock = wire.connect(hub.address, "wrong", timeout=5)
                wire.send(sock, {"role": "executor"})
            except OSError as error:
                refused.append(error)

        thread = _in_thread(intrude)
        assert hub.poll(2.0) == []
        thread.join()
        assert refused
        assert hub.poll(0.05) == []

        thread = _in_thread(lambda: wire.send(wire.connect(hub.address, "right", timeout=5), {"role": "executor"}))
        events = []
        while not events:
            events = hub.poll(2.0)
        assert events[0].head["event"] == "hello"
        thread.join()
    finally:
        hub.close()


def test_a_peer_greets_only_a_hub_that_knows_the_secret() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def impostor() -> None:
        sock, _ = listener.accept()
        sock.sendall(b"n" * 32)
        sock.recv(4096)
        sock.sendall(b"f" * 32)

    thread = _in_thread(impostor)
    with pytest.raises(wire.WireError, match="hub does not know"):
        wire.connect(listener.getsockname(), "secret", timeout=5)
    thread.join()
    listener.close()
