#!/usr/bin/env python3
"""A verbs peer under remote control: one RC queue pair on rxe0, driven over TCP.

Usage: verbs_peer.py [--port 18600]            serve connections, each with its own state
       verbs_peer.py --connect HOST:PORT       serve one connection that it opens itself

Each line from the driver is a JSON object {"cmd": NAME, ...}; each gets one line back,
{"ok": true, ...} or {"ok": false, "error": TEXT}. An error changes nothing else: the
next command is served. Whatever a connection opened is closed when it ends.

    open      [gid_index] [mtu] [buf_size] [access] [qp_access] [max_rd_atomic] [timeout]
              [retry_cnt] [rnr_retry] [min_rnr_timer] [max_send_wr] [max_recv_wr] [psn]
              [device] -> qpn psn gid addr rkey lkey
              Device, PD, CQ, MR over a page-aligned buffer of zeros, QP in INIT.
    connect   qpn psn gid           the QP to RTR and RTS
    new_qp    [options of open, except of the buffer] -> qpn psn gid
              A fresh QP in place of the old one, and an emptied CQ; same MRs.
    reset     [psn] -> qpn psn      the same QP by way of RESET back to INIT
    to_err                          the QP to ERR
    query_qp  -> state sq_psn rq_psn ...
    second_mr length [access] -> mr addr rkey lkey
    close                           closes all; open may follow

    fill      offset length [seed]  byte i (from 0) = (seed + i*7 + (i>>8)*13) & 0xff
    write_mem offset hex
    read_mem  offset length -> hex
    crc       offset length -> crc  (zlib.crc32)

    post_recv [wr_id] [offset] [length] [lkey]
    post_send op [wr_id] [offset] [length] [remote_addr] [rkey] [imm] [compare_add] [swap]
              [signaled] [solicited] [fence] [inline] [lkey]
              op is one of send, send_imm, write, write_imm, read, cas, faa.
              faa adds compare_add; cas compares with it and stores swap. Both leave the
              old value, in this machine's byte order, at offset.
    poll      [count] [timeout_ms] -> wcs
              Waits for count completions, or the timeout; returns what there is.

mtu is in bytes; access and qp_access are lists of local_write, remote_write, remote_read,
remote_atomic. All offsets are from the start of the first MR, or of the one that "mr"
names, by the number that second_mr returned.

imm is an integer in host order at both ends: it is put on the wire most significant
byte first, so that 0x11223344 travels as 11 22 33 44. It is null in a completion that
has none, and so is opcode in one that failed (it is undefined there).
"""

import argparse
import ctypes
import ipaddress
import json
import random
import socket
import socketserver
import sys
import time
import zlib

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

PORT_NUM = 1
POLL_PAUSE_SECONDS = 0.0002

MTUS = {256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}

ACCESS = {
    "local_write": e.IBV_ACCESS_LOCAL_WRITE,
    "remote_write": e.IBV_ACCESS_REMOTE_WRITE,
    "remote_read": e.IBV_ACCESS_REMOTE_READ,
    "remote_atomic": e.IBV_ACCESS_REMOTE_ATOMIC,
}
ALL_ACCESS = tuple(ACCESS)

OPERATIONS = {
    "send": e.IBV_WR_SEND,
    "send_imm": e.IBV_WR_SEND_WITH_IMM,
    "write": e.IBV_WR_RDMA_WRITE,
    "write_imm": e.IBV_WR_RDMA_WRITE_WITH_IMM,
    "read": e.IBV_WR_RDMA_READ,
    "cas": e.IBV_WR_ATOMIC_CMP_AND_SWP,
    "faa": e.IBV_WR_ATOMIC_FETCH_AND_ADD,
}
RDMA_OPERATIONS = ("write", "write_imm", "read")
ATOMIC_OPERATIONS = ("cas", "faa")

# By number, without the prefixes IBV_WC_ and IBV_QPS_.
WC_STATUSES = (
    "SUCCESS LOC_LEN_ERR LOC_QP_OP_ERR LOC_EEC_OP_ERR LOC_PROT_ERR WR_FLUSH_ERR "
    "MW_BIND_ERR BAD_RESP_ERR LOC_ACCESS_ERR REM_INV_REQ_ERR REM_ACCESS_ERR REM_OP_ERR "
    "RETRY_EXC_ERR RNR_RETRY_EXC_ERR LOC_RDD_VIOL_ERR REM_INV_RD_REQ_ERR REM_ABORT_ERR "
    "INV_EECN_ERR INV_EEC_STATE_ERR FATAL_ERR RESP_TIMEOUT_ERR GENERAL_ERR"
).split()
QP_STATES = "RESET INIT RTR RTS SQD SQE ERR".split()
WC_OPCODES = {
    0: "SEND",
    1: "RDMA_WRITE",
    2: "RDMA_READ",
    3: "COMP_SWAP",
    4: "FETCH_ADD",
    128: "RECV",
    129: "RECV_RDMA_WITH_IMM",
}


def access_flags(names):
    flags = 0
    for name in names:
        flags |= ACCESS[name]
    return flags


def gid_text(gid):
    address = ipaddress.IPv6Address(gid)
    return f"::ffff:{address.ipv4_mapped}" if address.ipv4_mapped else str(address)


def random_psn():
    return random.getrandbits(24)


def pattern(seed, length):
    """Byte i = (seed + i*7 + (i>>8)*13) & 0xff, which has a period of 65536."""
    period = bytes((seed + i * 7 + (i >> 8) * 13) & 0xFF for i in range(min(length, 65536)))
    return (period * (length // 65536 + 1))[:length]


class Memory:
    """A registered buffer. Offsets are checked here: a wrong one must not end the program."""

    def __init__(self, pd, length, access):
        self.mr = MR(pd, length, access_flags(access))
        self.length = length
        ctypes.memset(self.mr.buf, 0, length)

    def keys(self):
        return {"addr": self.mr.buf, "rkey": self.mr.rkey, "lkey": self.mr.lkey}

    def address(self, offset, length):
        if offset < 0 or length < 0 or offset + length > self.length:
            raise ValueError(f"{length} bytes at {offset} are not within {self.length}")
        return self.mr.buf + offset

    def write(self, offset, data):
        ctypes.memmove(self.address(offset, len(data)), data, len(data))

    def view(self, offset, length):
        return memoryview((ctypes.c_char * length).from_address(self.address(offset, length)))


class QueuePair:
    """An RC QP with the attributes it was asked for."""

    def __init__(
        self, pd, cq, gid_index=1, mtu=4096, qp_access=ALL_ACCESS, max_rd_atomic=16,
        timeout=14, retry_cnt=7, rnr_retry=7, min_rnr_timer=12, max_send_wr=64,
        max_recv_wr=64, psn=None,
    ):  # fmt: skip
        self.gid_index = gid_index
        self.mtu = MTUS[mtu]
        self.access = access_flags(qp_access)
        self.max_rd_atomic = max_rd_atomic
        self.timeout = timeout
        self.retry_cnt = retry_cnt
        self.rnr_retry = rnr_retry
        self.min_rnr_timer = min_rnr_timer
        cap = QPCap(max_send_wr, max_recv_wr, 1, 1, 0)
        self.qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=cap))
        self.to_init(psn)

    def to_init(self, psn):
        self.psn = random_psn() if psn is None else psn
        attr = QPAttr(port_num=PORT_NUM)
        attr.qp_access_flags = self.access
        self.qp.to_init(attr)

    def connect(self, qpn, psn, gid):
        route = GlobalRoute(
            dgid=GID(ipaddress.IPv6Address(gid).exploded), sgid_index=self.gid_index, hop_limit=64
        )
        attr = QPAttr(port_num=PORT_NUM)
        attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=PORT_NUM)
        attr.path_mtu = self.mtu
        attr.dest_qp_num = qpn
        attr.rq_psn = psn
        attr.max_dest_rd_atomic = self.max_rd_atomic
        attr.min_rnr_timer = self.min_rnr_timer
        self.qp.to_rtr(attr)
        attr.sq_psn = self.psn
        attr.timeout = self.timeout
        attr.retry_cnt = self.retry_cnt
        attr.rnr_retry = self.rnr_retry
        attr.max_rd_atomic = self.max_rd_atomic
        self.qp.to_rts(attr)

    def reset(self, psn):
        self.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
        self.to_init(psn)

    def identity(self):
        return {"qpn": self.qp.qp_num, "psn": self.psn}


class Peer:
    """The state of one connection; each method cmd_X serves the command X."""

    def __init__(self):
        self.context = self.pd = self.cq = self.pair = None
        self.memories = []

    def serve(self, request):
        try:
            arguments = json.loads(request)
            command = getattr(self, "cmd_" + arguments.pop("cmd"), None)
            if command is None:
                raise ValueError("unknown command")
            return {"ok": True, **(command(**arguments) or {})}
        except Exception as error:  # any: the driver is to see it and go on
            return {"ok": False, "error": f"{type(error).__name__}: {error}"}

    def cmd_open(
        self, device="rxe0", buf_size=65536, access=ALL_ACCESS, max_send_wr=64, max_recv_wr=64,
        **qp_options,
    ):  # fmt: skip
        self.cmd_close()
        try:
            self.context = Context(name=device)
            self.pd = PD(self.context)
            self.cq = CQ(self.context, max_send_wr + max_recv_wr + 16)
            self.memories.append(Memory(self.pd, buf_size, access))
            return {
                **self.make_pair(max_send_wr=max_send_wr, max_recv_wr=max_recv_wr, **qp_options),
                **self.memories[0].keys(),
            }
        except Exception:
            self.cmd_close()
            raise

    def make_pair(self, **options):
        self.pair = QueuePair(self.pd, self.cq, **options)
        self.options = options
        gid = self.context.query_gid(PORT_NUM, self.pair.gid_index).gid
        return {**self.pair.identity(), "gid": gid_text(gid)}

    def cmd_connect(self, qpn, psn, gid):
        self.pair.connect(qpn, psn, gid)

    def cmd_new_qp(self, **options):
        self.pair.qp.close()
        while self.cq.poll(16)[0]:
            pass
        return self.make_pair(**{**self.options, "psn": None, **options})

    def cmd_reset(self, psn=None):
        self.pair.reset(psn)
        return self.pair.identity()

    def cmd_to_err(self):
        self.pair.qp.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)

    def cmd_query_qp(self):
        attr, _ = self.pair.qp.query(e.IBV_QP_STATE | e.IBV_QP_SQ_PSN | e.IBV_QP_RQ_PSN)
        return {
            **self.pair.identity(),
            "state": QP_STATES[attr.qp_state],
            "sq_psn": attr.sq_psn,
            "rq_psn": attr.rq_psn,
            "dest_qpn": attr.dest_qp_num,
        }

    def cmd_second_mr(self, length, access=ALL_ACCESS):
        self.memories.append(Memory(self.pd, length, access))
        return {"mr": len(self.memories) - 1, **self.memories[-1].keys()}

    def cmd_close(self):
        if self.context:
            self.context.close()  # and with it all that was made of it
        self.__init__()

    def cmd_fill(self, offset, length, seed=0, mr=0):
        self.memories[mr].address(offset, length)
        self.memories[mr].write(offset, pattern(seed, length))

    def cmd_write_mem(self, offset, hex, mr=0):
        self.memories[mr].write(offset, bytes.fromhex(hex))

    def cmd_read_mem(self, offset, length, mr=0):
        return {"hex": self.memories[mr].view(offset, length).hex()}

    def cmd_crc(self, offset, length, mr=0):
        return {"crc": zlib.crc32(self.memories[mr].view(offset, length))}

    def cmd_post_recv(self, wr_id=0, offset=0, length=0, lkey=None, mr=0):
        sg = [self.element(offset, length, lkey, mr)]
        self.pair.qp.post_recv(RecvWR(wr_id=wr_id, num_sge=1, sg=sg))

    def cmd_post_send(
        self, op, wr_id=0, offset=0, length=None, remote_addr=0, rkey=0, imm=0, compare_add=0,
        swap=0, signaled=True, solicited=False, fence=False, inline=False, lkey=None, mr=0,
    ):  # fmt: skip
        if length is None:
            length = 8 if op in ATOMIC_OPERATIONS else 0
        flags = (
            signaled * e.IBV_SEND_SIGNALED
            | solicited * e.IBV_SEND_SOLICITED
            | fence * e.IBV_SEND_FENCE
            | inline * e.IBV_SEND_INLINE
        )
        wr = SendWR(
            wr_id=wr_id, opcode=OPERATIONS[op], num_sge=1,
            sg=[self.element(offset, length, lkey, mr)],
            imm_data=socket.htonl(imm), send_flags=flags,
        )  # fmt: skip
        if op in RDMA_OPERATIONS:
            wr.set_wr_rdma(rkey, remote_addr)
        elif op in ATOMIC_OPERATIONS:
            wr.set_wr_atomic(rkey, remote_addr, compare_add, swap)
        self.pair.qp.post_send(wr)

    def element(self, offset, length, lkey, mr):
        """The one SGE of a work request; pyverbs wants one even for no bytes."""
        memory = self.memories[mr]
        return SGE(
            memory.address(offset, length), length, memory.mr.lkey if lkey is None else lkey
        )

    def cmd_poll(self, count=1, timeout_ms=1000):
        deadline = time.monotonic() + timeout_ms / 1000
        wcs = []
        while True:
            _, found = self.cq.poll(count - len(wcs))
            wcs += found or []
            if len(wcs) >= count or time.monotonic() >= deadline:
                return {"wcs": [self.completion(wc) for wc in wcs]}
            if not found:
                time.sleep(POLL_PAUSE_SECONDS)

    def completion(self, wc):
        known = wc.status < len(WC_STATUSES)
        success = wc.status == e.IBV_WC_SUCCESS
        with_imm = success and wc.wc_flags & e.IBV_WC_WITH_IMM
        return {
            "wr_id": wc.wr_id,
            "status": WC_STATUSES[wc.status] if known else str(wc.status),
            "status_code": wc.status,
            "opcode": WC_OPCODES.get(wc.opcode, str(wc.opcode)) if success else None,
            "byte_len": wc.byte_len,
            "imm": socket.ntohl(wc.imm_data) if with_imm else None,
            "qp_num": wc.qp_num,
            "vendor_err": wc.vendor_err,
        }


def serve_connection(connection):
    # An answer is one small segment, and the driver waits for it.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer = Peer()
    try:
        with connection.makefile("rb") as lines:
            for line in lines:
                connection.sendall(json.dumps(peer.serve(line)).encode() + b"\n")
    except ConnectionError:
        pass
    finally:
        peer.cmd_close()


class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        serve_connection(self.request)


class Server(socketserver.ThreadingTCPServer):
    address_family = socket.AF_INET6  # takes IPv4 as well
    allow_reuse_address = True
    daemon_threads = True


def main():
    parser = argparse.ArgumentParser(description="a verbs peer under remote control")
    parser.add_argument("--port", type=int, default=18600, help="TCP port to listen on")
    parser.add_argument("--connect", metavar="HOST:PORT", help="connect there instead")
    options = parser.parse_args()
    if options.connect:
        host, port = options.connect.rsplit(":", 1)
        with socket.create_connection((host.strip("[]"), int(port))) as connection:
            serve_connection(connection)
        return
    with Server(("::", options.port), Handler) as server:
        print(f"listening on port {options.port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError) as error:
        sys.exit(f"verbs_peer: {error}")
