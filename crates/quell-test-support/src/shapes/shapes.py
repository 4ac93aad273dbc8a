"""Servers that wait for their sockets in different ways: python3 shapes.py SHAPE ADDRESS PORT

Each answers datagrams at PORT, and connections at the TCP port of the same number."""
import ctypes, os, select, signal, socket, struct, subprocess, sys, threading, time

SHAPE, ADDRESS, PORT = sys.argv[1], sys.argv[2], int(sys.argv[3])
IN, OUT, ET, ONESHOT, RDHUP = select.EPOLLIN, select.EPOLLOUT, select.EPOLLET, select.EPOLLONESHOT, select.EPOLLRDHUP
libc = ctypes.CDLL(None)
CLIENT = ADDRESS.rsplit(".", 1)[0] + ".2"
kept = []


def bound(kind):
    bound = socket.socket(socket.AF_INET, kind)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((ADDRESS, PORT))
    bound.setblocking(False)
    kept.append(bound)
    return bound


listener = bound(socket.SOCK_STREAM)
listener.listen(16)
udp = bound(socket.SOCK_DGRAM)
connections = {}


asked = None


def ask(server):
    """Asks another server, and sleeps for its answer outside of the epoll."""
    server.send(b"?")
    if SHAPE == "asks-by-poll":
        poll = select.poll()
        poll.register(server, select.POLLIN)
        poll.poll()
    server.recv(8)


def ask_often(server):
    while True:
        ask(server)
        time.sleep(0.001)


def echo_datagrams(bound):
    while True:
        bound.sendto(*bound.recvfrom(8))


def answer(fd):
    if fd == udp.fileno():
        try:
            while True:
                data, peer = udp.recvfrom(2048)
                if asked:
                    ask(asked)
                udp.sendto(data, peer)
        except BlockingIOError:
            pass
    elif fd in connections:
        try:
            data = connections[fd].recv(1 if SHAPE.startswith("partial") else 2048)
        except BlockingIOError:
            return
        if data:
            connections[fd].sendall(data)
        else:
            connections.pop(fd).close()


def accept(epoll, events):
    try:
        while True:
            connection = listener.accept()[0]
            connection.setblocking(False)
            connections[connection.fileno()] = connection
            epoll.register(connection, events)
    except BlockingIOError:
        pass


def connected():
    """A connected datagram socket, in which nothing arrives."""
    kept.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    kept[-1].connect((CLIENT, 9))
    return kept[-1]


def end_of(epoll, events):
    """Waits for a connection whose peer closes, reads it to its end, and leaves it registered."""
    listener.setblocking(True)
    connection = listener.accept()[0]
    if SHAPE == "reset":
        connection.sendall(b"?")
    try:
        while connection.recv(64):
            pass
    except ConnectionResetError:
        pass
    kept.append(connection)
    epoll.register(connection, events)


def serve(epoll, timeout, events=IN):
    """`timeout` as in poll of Python: seconds; None: no limit."""
    while True:
        for fd, _ in epoll.poll(timeout):
            accept(epoll, events) if fd == listener.fileno() else answer(fd)
        # A ready object must not make the server spin, and local clients find it busy.
        if SHAPE in SLOWED:
            time.sleep(0.001)


def signalfd(number):
    """A signalfd that accepts this signal."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    return libc.signalfd(-1, struct.pack("<16Q", 1 << (number - 1), *[0] * 15), 0)


def register_child(end):
    """Registers a child with the epoll, which ends at once or never."""
    pid = os.fork()
    if pid == 0:
        end()
    epoll.register(os.pidfd_open(pid), IN)


def reuse_number(registered, unrelated):
    """Registers a file whose number then refers to another one, while the first stays open."""
    kept.append(os.dup(registered))
    epoll.register(registered, IN)
    os.dup2(unrelated, registered)


SLOWED = ("writable", "connections-for-out", "half-closed", "half-closed-rdhup", "reset", "listener", "error-queue",
          "eventfd", "signalfd", "pidfd", "number-reused", "notifications", "urgent", "unconnected", "left-to-child",
          "terminal", "message-queue", "local-clients", "unread", "partial")
epoll = select.epoll()
epoll.register(udp, IN)

if SHAPE in ("plain", "one-ms", "spin", "connections-for-out", "partial", "partial-fast"):
    epoll.register(listener, IN)
    events = IN | OUT if SHAPE == "connections-for-out" else IN
    serve(epoll, {"one-ms": 0.001, "spin": 0}.get(SHAPE), events)
elif SHAPE.startswith("asks"):
    asked = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    if SHAPE == "asks-loopback":
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        answering = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        answering.bind(("127.0.0.1", PORT))
        threading.Thread(target=echo_datagrams, args=(answering,)).start()
    asked.connect(("127.0.0.1" if SHAPE == "asks-loopback" else CLIENT, PORT))
    if SHAPE == "asks-in-thread":
        other, asked = asked, None
        threading.Thread(target=ask_often, args=(other,)).start()
    serve(epoll, None)
elif SHAPE == "later":
    signal.signal(signal.SIGUSR1, lambda *_: epoll.register(connected(), IN | OUT))
    serve(epoll, None)
elif SHAPE in ("writable", "writable-edge", "writable-oneshot"):
    flags = {"writable-edge": ET, "writable-oneshot": ONESHOT}.get(SHAPE, 0)
    epoll.register(connected(), IN | OUT | flags)
    serve(epoll, None)
elif SHAPE in ("half-closed", "half-closed-rdhup", "half-closed-edge", "reset"):
    end_of(epoll, {"half-closed-rdhup": RDHUP, "half-closed-edge": IN | RDHUP | ET}.get(SHAPE, IN))
    serve(epoll, None)
elif SHAPE == "listener":
    # As if accept failed with EMFILE.
    epoll.register(listener, IN)
    while True:
        for fd, _ in epoll.poll():
            answer(fd)
        time.sleep(0.001)
elif SHAPE == "error-queue":
    IP_RECVERR = 11
    refused = connected()
    refused.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
    refused.send(b"?")
    epoll.register(refused, IN)
    serve(epoll, None)
elif SHAPE in ("eventfd", "eventfd-edge"):
    event = os.eventfd(1) if hasattr(os, "eventfd") else os.pipe()[1]
    epoll.register(event, (IN if hasattr(os, "eventfd") else OUT) | (ET if SHAPE != "eventfd" else 0))
    serve(epoll, None)
elif SHAPE in ("terminal", "terminal-idle"):
    # The side of a terminal emulator.
    kept.extend(os.openpty())
    epoll.register(kept[-2], OUT if SHAPE == "terminal" else IN)
    serve(epoll, None)
elif SHAPE in ("message-queue", "message-queue-idle"):
    libc.mq_open.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p]
    name = f"/quell-{os.getpid()}".encode()
    queue = libc.mq_open(name, os.O_RDWR | os.O_CREAT, 0o600, None)
    libc.mq_unlink(name)
    epoll.register(queue, OUT if SHAPE == "message-queue" else IN)
    serve(epoll, None)
elif SHAPE in ("signalfd", "signalfd-idle"):
    epoll.register(signalfd(signal.SIGUSR1), IN)
    if SHAPE == "signalfd":
        os.kill(os.getpid(), signal.SIGUSR1)
    serve(epoll, None)
elif SHAPE in ("pidfd", "pidfd-running"):
    register_child((lambda: os._exit(0)) if SHAPE == "pidfd" else signal.pause)
    serve(epoll, None)
elif SHAPE in ("number-reused", "number-reused-idle"):
    (ready, writer), (idle, _) = os.pipe(), os.pipe()
    os.write(writer, b"?")
    reuse_number(*((ready, idle) if SHAPE == "number-reused" else (idle, ready)))
    serve(epoll, None)
elif SHAPE == "notifications":
    SO_ZEROCOPY, MSG_ZEROCOPY = 60, 0x4000000
    sender = connected()
    sender.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
    sender.send(b"?" * 1000, MSG_ZEROCOPY)
    epoll.register(sender, IN)
    serve(epoll, None)
elif SHAPE == "urgent":
    listener.setblocking(True)
    kept.append(listener.accept()[0])
    epoll.register(kept[-1], select.EPOLLPRI)
    serve(epoll, None)
elif SHAPE == "unread":
    # It never reads what its client sends.
    listener.setblocking(True)
    kept.append(listener.accept()[0])
    epoll.register(kept[-1], IN)
    serve(epoll, None)
elif SHAPE == "unconnected":
    kept.append(socket.socket())
    epoll.register(kept[-1], IN)
    serve(epoll, None)
elif SHAPE == "left-to-child":
    # The epoll reports a connection that only a child has open.
    listener.setblocking(True)
    connection = listener.accept()[0]
    epoll.register(connection, IN)
    if os.fork() == 0:
        signal.pause()
    connection.close()
    serve(epoll, None)
elif SHAPE in ("inherited", "served-by-child"):
    is_child = os.fork() == 0
    if is_child == (SHAPE == "inherited"):
        signal.pause()
    serve(epoll, None)
elif SHAPE == "duplicate":
    serve(select.epoll.fromfd(os.dup(epoll.fileno())), None)
elif SHAPE == "refilled":
    # It reads its own datagram once in each frame, and sends it again.
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    own.bind(("127.0.0.1", 0))
    own.connect(own.getsockname())
    own.send(b"?")
    epoll.register(own, IN)
    while True:
        for fd, _ in epoll.poll(0):
            own.send(own.recv(8)) if fd == own.fileno() else answer(fd)
        time.sleep(1 / 20)
elif SHAPE in ("local-clients", "pausing-local-clients"):
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    epoll.register(listener, IN)
    for _ in range(4):
        if os.fork() == 0:
            client = socket.create_connection((ADDRESS, PORT))
            while client.send(b"?") and client.recv(8):
                time.sleep(0.1 if SHAPE == "pausing-local-clients" else 0)
    serve(epoll, None)
elif SHAPE == "local-upstream":
    # A proxy: it forwards each request to a local server, in the same epoll.
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    epoll.register(listener, IN)
    upstream = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    upstream.bind(("127.0.0.1", 0))
    if os.fork() == 0:
        echo_datagrams(upstream)
    forwards, asking = {}, []
    while True:
        for fd, _ in epoll.poll():
            if fd == listener.fileno():
                accept(epoll, IN)
            elif fd in connections:
                if connections[fd].recv(2048):
                    if fd not in forwards:
                        asking.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                        asking[-1].connect(upstream.getsockname())
                        epoll.register(asking[-1], IN)
                        forwards[fd], forwards[asking[-1].fileno()] = asking[-1], connections[fd]
                    forwards[fd].send(b"?")
            elif fd in forwards:
                forwards[fd].send(next(one for one in asking if one.fileno() == fd).recv(8))
            else:
                answer(fd)
elif SHAPE in ("tick", "slow-tick", "slow-tick-writable"):
    # A game server: it looks for packets once in each frame.
    if SHAPE == "slow-tick-writable":
        writable = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        epoll.register(writable, OUT)
    while True:
        for fd, _ in epoll.poll(0):
            answer(fd)
        time.sleep(1 / 60 if SHAPE == "tick" else 1 / 20)
elif SHAPE == "thread-per-connection":
    accepting = select.epoll()
    accepting.register(listener, IN)

    def echo(connection):
        while data := connection.recv(64):
            connection.sendall(data)

    def datagrams():
        udp.setblocking(True)
        answer(udp.fileno())

    epoll.close()
    threading.Thread(target=datagrams).start()
    while True:
        accepting.poll()
        connection = listener.accept()[0]
        connection.setblocking(True)
        threading.Thread(target=echo, args=(connection,)).start()
elif SHAPE in ("nested", "nested-waits", "nested-drains", "nested-no-limit", "nested-in-poll", "in-poll-no-limit"):
    inner = select.epoll()
    inner.register(udp, IN | ONESHOT)
    epoll.unregister(udp)
    epoll.register(inner, IN)
    poll = select.poll()
    poll.register(inner, select.POLLIN)
    if "in-poll" in SHAPE:
        epoll.close()
    while True:
        if "in-poll" in SHAPE:
            poll.poll()
        elif SHAPE != "nested-waits":
            epoll.poll()
        timeout = None if SHAPE in ("nested-waits", "nested-no-limit", "in-poll-no-limit") else 0
        while events := inner.poll(timeout):
            for fd, _ in events:
                answer(fd)
                inner.modify(fd, IN | ONESHOT)
            if SHAPE != "nested-drains":
                break
elif SHAPE == "one-sleeps":
    # Like Go: one thread spins, another one sleeps in the same epoll.

    def sleep():
        while True:
            epoll.poll(0.1)

    threading.Thread(target=sleep).start()
    while True:
        for fd, _ in epoll.poll(0):
            answer(fd)
elif SHAPE == "spin-then-wait":
    while True:
        until = time.monotonic() + 0.0005
        while not (events := epoll.poll(0)) and time.monotonic() < until:
            pass
        for fd, _ in events or epoll.poll():
            answer(fd)
elif SHAPE == "in-turn":
    lock = threading.Lock()

    def turn():
        while True:
            with lock:
                for fd, _ in epoll.poll(0):
                    answer(fd)
            # A sleep of 0 takes the slack of its timer, on fast CPUs longer than the call.
            os.sched_yield()

    threading.Thread(target=turn).start()
    turn()
else:
    sys.exit("no shape " + SHAPE)
