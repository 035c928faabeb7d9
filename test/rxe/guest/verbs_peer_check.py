#!/usr/bin/env python3
"""Checks verbs_peer.py against itself: two connections to one instance, QP to QP over rxe.

Usage: verbs_peer_check.py [--port 18600] [--gid-index 1]
"""

import argparse
import json
import socket
import zlib

SIZE = 1 << 20
SUCCESS = "SUCCESS"


class Driver:
    """One connection to verbs_peer.py."""

    def __init__(self, port):
        self.connection = socket.create_connection(("127.0.0.1", port))
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.lines = self.connection.makefile("rb")

    def try_call(self, cmd, **arguments):
        self.connection.sendall(json.dumps({"cmd": cmd, **arguments}).encode() + b"\n")
        return json.loads(self.lines.readline())

    def call(self, cmd, **arguments):
        answer = self.try_call(cmd, **arguments)
        assert answer["ok"], (cmd, arguments, answer)
        return answer

    def complete(self, status=SUCCESS, timeout_ms=10000):
        wcs = self.call("poll", count=1, timeout_ms=timeout_ms)["wcs"]
        assert len(wcs) == 1 and wcs[0]["status"] == status, wcs
        return wcs[0]

    def close(self):
        self.lines.close()
        self.connection.close()


def expected(seed, length):
    return bytes((seed + i * 7 + (i >> 8) * 13) & 0xFF for i in range(length))


def connect(a, b, a_id, b_id):
    a.call("connect", qpn=b_id["qpn"], psn=b_id["psn"], gid=b_id["gid"])
    b.call("connect", qpn=a_id["qpn"], psn=a_id["psn"], gid=a_id["gid"])
    for peer in (a, b):
        assert peer.call("query_qp")["state"] == "RTS"


def check_memory(a):
    a.call("fill", offset=3, length=70000, seed=5)
    assert a.call("crc", offset=3, length=70000)["crc"] == zlib.crc32(expected(5, 70000))
    a.call("write_mem", offset=1, hex="c0ffee")
    assert a.call("read_mem", offset=0, length=4)["hex"] == "00c0ffee"


def check_send(a, b):
    b.call("post_recv", wr_id=70, offset=0, length=9000)
    a.call("fill", offset=0, length=9000, seed=1)
    a.call("post_send", op="send", wr_id=7, offset=0, length=9000)
    assert a.complete()["opcode"] == "SEND"
    wc = b.complete()
    assert (wc["wr_id"], wc["opcode"], wc["byte_len"], wc["imm"]) == (70, "RECV", 9000, None)
    assert b.call("crc", offset=0, length=9000)["crc"] == zlib.crc32(expected(1, 9000))
    b.call("post_recv", wr_id=71)
    a.call("post_send", op="send_imm", imm=0x11223344)
    a.complete()
    assert b.complete()["imm"] == 0x11223344


def check_write(a, b, b_id):
    remote = {"remote_addr": b_id["addr"] + 100, "rkey": b_id["rkey"]}
    a.call("fill", offset=0, length=500000, seed=2)
    a.call("post_send", op="write", offset=0, length=500000, **remote)
    assert a.complete()["opcode"] == "RDMA_WRITE"
    assert b.call("crc", offset=100, length=500000)["crc"] == zlib.crc32(expected(2, 500000))
    b.call("post_recv", wr_id=72)
    a.call("post_send", op="write_imm", offset=0, length=5000, imm=0xFFFFFFFE, **remote)
    a.complete()
    wc = b.complete()
    assert (wc["opcode"], wc["byte_len"]) == ("RECV_RDMA_WITH_IMM", 5000), wc
    assert wc["imm"] == 0xFFFFFFFE, wc


def check_read(a, b, b_id):
    b.call("fill", offset=0, length=500000, seed=3)
    a.call(
        "post_send", op="read", offset=64, length=500000,
        remote_addr=b_id["addr"], rkey=b_id["rkey"],
    )  # fmt: skip
    assert a.complete()["opcode"] == "RDMA_READ"
    assert a.call("crc", offset=64, length=500000)["crc"] == zlib.crc32(expected(3, 500000))


def check_atomics(a, b, b_id):
    def word(peer, offset):
        return int.from_bytes(
            bytes.fromhex(peer.call("read_mem", offset=offset, length=8)["hex"]), "little"
        )

    remote = {"remote_addr": b_id["addr"] + 16, "rkey": b_id["rkey"]}
    b.call("write_mem", offset=16, hex=(40).to_bytes(8, "little").hex())
    a.call("post_send", op="faa", offset=8, compare_add=2, **remote)
    assert a.complete()["opcode"] == "FETCH_ADD"
    assert (word(a, 8), word(b, 16)) == (40, 42)
    a.call("post_send", op="cas", offset=8, compare_add=42, swap=1 << 63, **remote)
    assert a.complete()["opcode"] == "COMP_SWAP"
    assert (word(a, 8), word(b, 16)) == (42, 1 << 63)
    a.call("post_send", op="cas", offset=8, compare_add=1, swap=2, **remote)
    a.complete()
    assert (word(a, 8), word(b, 16)) == (1 << 63, 1 << 63)


def check_second_mr(a, b):
    second = b.call("second_mr", length=8192, access=["local_write", "remote_write"])
    remote = {"remote_addr": second["addr"], "rkey": second["rkey"]}
    a.call("fill", offset=0, length=8192, seed=4)
    a.call("post_send", op="write", offset=0, length=8192, **remote)
    a.complete()
    crc = b.call("crc", mr=second["mr"], offset=0, length=8192)["crc"]
    assert crc == zlib.crc32(expected(4, 8192))
    a.call("post_send", op="read", offset=0, length=8, **remote)
    wc = a.complete("REM_ACCESS_ERR")
    assert wc["status_code"] == 10 and wc["opcode"] is None
    assert a.call("query_qp")["state"] == "ERR"


def check_recovery(a, b, a_id, b_id):
    """After that error: a fresh QP on the one side, a reset one on the other."""
    a_id = {**a_id, **a.call("new_qp", psn=0xFFFFFE)}
    b_id = {**b_id, **b.call("reset")}
    assert a_id["psn"] == 0xFFFFFE
    connect(a, b, a_id, b_id)
    check_write(a, b, b_id)


def check_errors(a):
    assert not a.try_call("no_such_command")["ok"]
    assert not a.try_call("poll", no_such_argument=1)["ok"]
    assert not a.try_call("read_mem", offset=SIZE, length=1)["ok"]
    assert not a.try_call("open", device="none")["ok"]
    assert not a.try_call("query_qp")["ok"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=18600)
    parser.add_argument("--gid-index", type=int, default=1)
    options = parser.parse_args()
    a, b = Driver(options.port), Driver(options.port)
    a_id, b_id = (p.call("open", gid_index=options.gid_index, buf_size=SIZE) for p in (a, b))
    assert a_id["addr"] % 4096 == 0, a_id
    connect(a, b, a_id, b_id)
    check_memory(a)
    check_send(a, b)
    check_write(a, b, b_id)
    check_read(a, b, b_id)
    check_atomics(a, b, b_id)
    check_second_mr(a, b)
    check_recovery(a, b, a_id, b_id)
    check_errors(a)
    b.call("close")
    for peer in (a, b):
        peer.close()
    print("verbs_peer: all checks passed")


if __name__ == "__main__":
    main()
