"""A datagram server at 192.0.2.1:5300 that waits as its argument says, and answers each datagram."""
import os
import select
import socket
import sys

kind = sys.argv[1]


def bound():
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, kind == "group")
    server.bind(("192.0.2.1", 5300))
    return server


def answer(server):
    data, address = server.recvfrom(64)
    server.sendto(data, address)


def with_epoll(server):
    epoll = select.epoll()
    epoll.register(server, select.EPOLLIN)
    while True:
        epoll.poll()
        answer(server)


if kind == "group":
    first, second = bound(), bound()
    with_epoll(first if os.fork() else second)
elif kind == "xdp":
    import ctypes
    import mmap
    import struct
    import time

    xdp = socket.socket(44, socket.SOCK_RAW, 0)
    memory = mmap.mmap(-1, 4096 * 64)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    xdp.setsockopt(283, 4, struct.pack("QQIIII", address, 4096 * 64, 4096, 0, 0, 0))
    for ring in (5, 6, 2, 3):
        xdp.setsockopt(283, ring, struct.pack("i", 64))
    name = struct.pack("HHIII", 44, 2, socket.if_nametoindex("server0"), 1, 0)
    if ctypes.CDLL(None).bind(xdp.fileno(), name, len(name)) == 0:
        time.sleep(3600)
server = bound()
if kind == "epoll":
    with_epoll(server)
elif kind == "poll":
    poll = select.poll()
    poll.register(server, select.POLLIN)
    while True:
        poll.poll()
        answer(server)
elif kind == "select":
    while True:
        select.select([server], [], [])
        answer(server)
while kind == "recv":
    answer(server)
