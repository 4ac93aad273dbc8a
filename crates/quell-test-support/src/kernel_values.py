"""Reads what the kernel reports, by raw netlink messages and system calls: none of Quell's code is in between.

Arguments: path of a network namespace. Each line of standard input is a request; an answer ends with a line ".".
  napis DEVICE   a line for each instance, by ID: ID, defer-hard-irqs, gro-flush-timeout, irq-suspend-timeout, threaded
  epoll PID FD   busy_poll_usecs/busy_poll_budget/prefer_busy_poll
"""
import ctypes, fcntl, os, socket, struct, sys

CLONE_NEWNET, PIDFD_OPEN, PIDFD_GETFD, EPIOCGPARAMS = 0x40000000, 434, 438, 0x80088A02
NETLINK_GENERIC, GENL_ID_CTRL, CTRL_CMD_GETFAMILY, NETDEV_CMD_NAPI_GET = 16, 16, 3, 11
NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP, NLMSG_ERROR, NLMSG_DONE = 1, 4, 0x300, 2, 3
libc = ctypes.CDLL(None, use_errno=True)


def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def attribute(kind, value):
    return struct.pack("HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def attributes(data):
    found, at = {}, 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("HH", data, at)
        found[kind & 0x3FFF] = data[at + 4:at + length]
        at += (length + 3) & ~3
    return found


def request(family, command, flags, payload):
    """Sends one message and returns the attributes of every answer."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_GENERIC) as netlink:
        header = struct.pack("=IHHII", 20 + len(payload), family, NLM_F_REQUEST | flags, 1, 0)
        netlink.send(header + struct.pack("BBH", command, 1, 0) + payload)
        answers = []
        while True:
            data, at = netlink.recv(1 << 16), 0
            while at < len(data):
                length, kind = struct.unpack_from("=IH", data, at)
                if kind == NLMSG_ERROR and (error := struct.unpack_from("=i", data, at + 16)[0]):
                    raise OSError(-error, os.strerror(-error))
                if kind in (NLMSG_ERROR, NLMSG_DONE):
                    return answers
                answers.append(attributes(data[at + 20:at + length]))
                at += (length + 3) & ~3


def napis(device):
    family = request(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, NLM_F_ACK, attribute(2, b"netdev\0"))[0][1]
    of_device = attribute(1, struct.pack("I", socket.if_nametoindex(device)))
    found = request(struct.unpack("H", family)[0], NETDEV_CMD_NAPI_GET, NLM_F_DUMP, of_device)
    number = lambda data: "-" if data is None else int.from_bytes(data, sys.byteorder)
    rows = [[number(napi.get(kind)) for kind in (2, 5, 6, 7, 8)] for napi in found]
    return [" ".join(map(str, row)) for row in sorted(rows)]


def epoll(pid, fd):
    process = checked(libc.syscall(PIDFD_OPEN, int(pid), 0))
    duplicate = checked(libc.syscall(PIDFD_GETFD, process, int(fd), 0))
    params = bytearray(8)
    fcntl.ioctl(duplicate, EPIOCGPARAMS, params)
    os.close(duplicate)
    os.close(process)
    return ["%d/%d/%d" % struct.unpack_from("=IHB", params)]


with open(sys.argv[1]) as namespace:
    checked(libc.setns(namespace.fileno(), CLONE_NEWNET))
for line in sys.stdin:
    name, *arguments = line.split()
    print(*{"napis": napis, "epoll": epoll}[name](*arguments), ".", sep="\n", flush=True)
