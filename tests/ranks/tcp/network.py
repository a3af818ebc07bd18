# SPDX-License-Identifier: Apache-2.0
"""network.py SCENARIO PROGRAM: ranks on hosts of our own, which are network namespaces on one bridge. PROGRAM is
network_rank; of the scenario proxy it is ranks_tcp_proxy.

Needs root and iproute2; says so and ends with 77 (skipped) without. Leaves no namespace, bridge or process behind.
"""
import os
import pathlib
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PROGRAM = sys.argv[2]
LIMIT = 60


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class Network:
    """`hosts` namespaces tdm<pid>h0, ... with 10.77.0.1, 10.77.0.2, ... and fd77::1, ... on one bridge, in a namespace
    of its own too, so that nothing of it is seen from outside."""

    def __init__(self, hosts):
        self.names = [f"tdm{os.getpid()}h{i}" for i in range(hosts)]
        self.switch = f"tdm{os.getpid()}s"
        self.processes = []
        ip("netns", "add", self.switch)
        self.inside(self.switch, "link", "add", "br0", "type", "bridge")
        self.inside(self.switch, "link", "set", "br0", "up")
        for i, name in enumerate(self.names):
            ip("netns", "add", name)
            ip("link", "add", f"v{i}", "netns", self.switch, "type", "veth", "peer", "name", "eth0", "netns", name)
            self.inside(self.switch, "link", "set", f"v{i}", "master", "br0", "up")
            self.inside(name, "link", "set", "lo", "up")
            self.inside(name, "addr", "add", f"10.77.0.{i + 1}/24", "dev", "eth0")
            self.inside(name, "addr", "add", f"fd77::{i + 1}/64", "dev", "eth0", "nodad")
            self.inside(name, "link", "set", "eth0", "up")

    @staticmethod
    def inside(name, *arguments):
        ip("-n", name, *arguments)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        for name in [*self.names, self.switch]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def start(self, host, *command, **environment):
        kept = {key: value for key, value in os.environ.items()
                if not re.match(r"(TANDEM|MASTER|OMPI|PMI|SLURM|TORCHELASTIC|RANK|WORLD_SIZE|LOCAL_)", key)}
        process = subprocess.Popen(["ip", "netns", "exec", self.names[host], *command], text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   env={**kept, **{key: str(value) for key, value in environment.items()}})
        self.processes.append(process)
        return process


def job(network, secret, placement, seconds=0, only=None, inside=(), **more):
    """Starts a rank on each host that `placement` names (or one rank alone); returns the processes, by rank. `inside`
    is a command that runs the one behind it."""
    size = len(placement)
    started = []
    for rank, host in enumerate(placement):
        if only not in (None, rank):
            continue
        local = [other for other in range(size) if placement[other] == host]
        settings = {"MASTER_ADDR": "10.77.0.1", "MASTER_PORT": 29500, "TANDEM_SECRET_FILE": secret, **more}
        started.append(network.start(host, *inside, PROGRAM, str(seconds), TANDEM_RANK=rank, TANDEM_SIZE=size,
                                     TANDEM_LOCAL_RANK=local.index(rank), TANDEM_LOCAL_SIZE=len(local), **settings))
    return started


def all_right(processes):
    for rank, process in enumerate(processes):
        out, _ = process.communicate(timeout=LIMIT)
        assert process.returncode == 0 and f"rank {rank} of {len(processes)}: right, ledger balanced" in out, (rank, out)


def hosts(secret):
    """C042: each rank is reached by the interface by which it reaches rank 0; one, two and more ranks a host."""
    for placement in ([0, 1], [0, 0, 1, 1], [0, 1, 2], [1, 0, 2]):
        with Network(3) as network:
            master = f"10.77.0.{placement[0] + 1}"
            all_right(job(network, secret, placement, MASTER_ADDR=master))


def torch_variables(secret):
    """RANK, WORLD_SIZE and MASTER_* alone, as for torch's env://, do not say how many ranks are on a host: an address
    that others reach is met at. The ranks used to wait for all others on their own host."""
    with Network(2) as network:
        common = {"WORLD_SIZE": 2, "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": 29500}
        all_right([network.start(host, PROGRAM, "0", RANK=host, TANDEM_SECRET_FILE=secret, **common)
                   for host in range(2)])
        alone = network.start(0, PROGRAM, "0", RANK=0, **common)
        out, _ = alone.communicate(timeout=LIMIT)
        assert alone.returncode != 0 and "set TANDEM_SECRET_FILE" in out and "LOCAL_WORLD_SIZE" in out, out


def loopback_name(secret):
    """C042: the own name stands for 127.0.1.1, as Debian installs it: rank 0 says where it listens and who reaches it."""
    with Network(2) as network:
        first = job(network, secret, [0, 1], only=0, MASTER_ADDR="127.0.1.1", TANDEM_TIMEOUT=2)
        second = job(network, secret, [0, 1], only=1, TANDEM_TIMEOUT=2)
        out, _ = first[0].communicate(timeout=LIMIT)
        assert "rank 0 listens at 127.0.1.1:29500, which only its own host reaches: set MASTER_ADDR" in out, out
        out, _ = second[0].communicate(timeout=LIMIT)
        assert "rank 0 was not reached (10.77.0.1:29500: Connection refused)" in out, out


def ipv6(secret):
    with Network(2) as network:
        all_right(job(network, secret, [0, 1, 1], MASTER_ADDR="fd77::1"))
        all_right(job(network, secret, [0, 1], MASTER_ADDR="[fd77::1]"))


def with_hosts_file(folder, text):
    """A command that runs the one behind it where names stand for what /etc/hosts says, which is `text`."""
    (folder / "hosts").write_text(text)
    (folder / "nsswitch.conf").write_text("hosts: files\n")
    script = 'mount --bind "$0/hosts" /etc/hosts && mount --bind "$0/nsswitch.conf" /etc/nsswitch.conf && exec "$@"'
    return ["unshare", "-m", "sh", "-c", script, str(folder)]


def addresses(network, host, inside):
    """What the name rank0 stands for there, in the system's order."""
    code = "import socket; print(*[it[4][0] for it in socket.getaddrinfo('rank0', 1, type=socket.SOCK_STREAM)])"
    out, _ = network.start(host, *inside, sys.executable, "-c", code).communicate(timeout=LIMIT)
    return out.split()


def names(secret):
    """C041: names that stand for ::1 and, after it, for 127.0.0.1, where rank 0 listens at the second alone, or where
    there is no IPv6; and a name that stands for nothing."""
    inside = with_hosts_file(secret.parent, "::1 localhost rank0\n127.0.0.1 localhost rank0\n")
    with Network(1) as network:
        assert addresses(network, 0, inside) == ["::1", "127.0.0.1"]

        def meet(first, second):
            common = {"inside": inside, "TANDEM_PORT": 29500}
            return (job(network, secret, [0, 0], only=0, MASTER_ADDR=first, **common) +
                    job(network, secret, [0, 0], only=1, MASTER_ADDR=second, **common))

        for name in ("localhost", "rank0"):
            all_right(meet(name, name))
            all_right(meet("127.0.0.1", name))
        for process in meet("nowhere", "nowhere"):
            out, _ = process.communicate(timeout=5)
            assert 'the host "nowhere" has no address (Name or service not known); set MASTER_ADDR' in out, out
        code = "open('/proc/sys/net/ipv6/conf/all/disable_ipv6', 'w').write('1')"
        assert network.start(0, sys.executable, "-c", code).wait(LIMIT) == 0
        all_right(meet("rank0", "rank0"))


def unanswering(secret):
    """C041: the first address of a name drops what comes; the second, where rank 0 is, is tried all the same."""
    with Network(2) as network:
        code = ("import socket, time\n"
                "full = socket.create_server(('fd77::1', 29500), family=socket.AF_INET6, backlog=0)\n"
                "queued = [socket.socket(socket.AF_INET6) for _ in range(3)]\n"
                "for it in queued: it.setblocking(False); it.connect_ex(('fd77::1', 29500))\n"
                "print('up', flush=True); time.sleep(60)\n")
        assert network.start(0, sys.executable, "-c", code).stdout.readline() == "up\n"
        inside = with_hosts_file(secret.parent, "fd77::1 rank0\n10.77.0.1 rank0\n")
        assert addresses(network, 1, inside) == ["fd77::1", "10.77.0.1"]
        first = job(network, secret, [0, 1], only=0)
        all_right(first + job(network, secret, [0, 1], only=1, inside=inside, MASTER_ADDR="rank0"))


def proxy(_):
    """proxy_test.cpp once more, with rank 0, the proxy and the other ranks on three hosts."""
    with Network(3) as network:
        places = " ".join(f"{name} 10.77.0.{i + 1}" for i, name in enumerate(network.names))
        done = subprocess.run([PROGRAM], env={**os.environ, "TANDEM_TEST_HOSTS": places}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=2 * LIMIT)
        assert done.returncode == 0, done.stdout


def port_range(secret):
    """A firewall that lets only the announced ports through: every connection has one of them at one of its ends."""
    with Network(3) as network:
        ranks = job(network, secret, [0, 1, 2], seconds=3, TANDEM_TCP_PORTS="40000-40010")
        for process in ranks:
            assert process.stdout.readline() == "joined\n"
        seen = 0
        for name in network.names:
            table = subprocess.run(["ip", "netns", "exec", name, "cat", "/proc/net/tcp"], check=True,
                                   capture_output=True, text=True).stdout
            for line in table.splitlines()[1:]:
                local, remote, state = line.split()[1:4]
                ports = {int(end.split(":")[1], 16) for end in (local, remote)}
                if state != "01":
                    continue
                seen += 1
                assert ports & {29500, *range(40000, 40011)}, line
        assert seen >= 6, seen  # three pairs, seen from both ends
        all_right(ranks)
    with Network(2) as network:
        # Two ranks of one host with one port between them.
        ranks = job(network, secret, [0, 0], TANDEM_TCP_PORTS="40000-40000", TANDEM_PORT=29500, TANDEM_TIMEOUT=3)
        outputs = [process.communicate(timeout=LIMIT)[0] for process in ranks]
        assert any("no free port to listen on at 10.77.0.1 from 40000 to 40000; widen TANDEM_TCP_PORTS" in out
                   for out in outputs), outputs
    with Network(3) as network:
        rules = ("add table inet t; add chain inet t in { type filter hook input priority 0; policy drop; };"
                 "add rule inet t in ct state established,related accept;"
                 "add rule inet t in tcp dport { 29500, 40000-40010 } accept")
        if shutil.which("nft"):
            for name in network.names:
                subprocess.run(["ip", "netns", "exec", name, "nft", rules], check=True, capture_output=True)
        all_right(job(network, secret, [0, 1, 2], TANDEM_TCP_PORTS="40000-40010"))


def strangers(secret):
    """Somebody on the network who knows the ports but not the secret: scans, floods, sends what looks like a frame."""
    with Network(3) as network:
        code = ("import socket, time, os\n"
                "end = time.monotonic() + 4\n"
                "kept = []\n"
                "while time.monotonic() < end:\n"
                "    for host in ('10.77.0.1', '10.77.0.2'):\n"
                "        for port in [29500, *range(40000, 40004)]:\n"
                "            s = socket.socket(); s.settimeout(0.05)\n"
                "            try:\n"
                "                s.connect((host, port)); s.send(os.urandom(300)); kept.append(s)\n"
                "            except OSError: pass\n"
                "    kept = kept[-200:]\n")
        network.start(2, sys.executable, "-c", code)
        time.sleep(0.5)
        all_right(job(network, secret, [0, 1, 1], seconds=3, TANDEM_TCP_PORTS="40000-40003"))


def killed(secret):
    """C045: a rank of another host is killed in the middle of traffic; the others name it within a second."""
    with Network(3) as network:
        ranks = job(network, secret, [0, 1, 2], seconds=60)
        for process in ranks:
            assert process.stdout.readline() == "joined\n"
        time.sleep(0.5)
        ranks[1].send_signal(signal.SIGKILL)
        start = time.monotonic()
        for rank in (0, 2):
            out, _ = ranks[rank].communicate(timeout=LIMIT)
            assert ranks[rank].returncode == 1 and "rank 1 (process" in out and "died" in out, out
        assert time.monotonic() - start < 5, "the others took their time"


def torchrun_port(secret):
    """A store that holds MASTER_PORT, as torchrun's does: the ranks meet beside it."""
    with Network(2) as network:
        code = "import socket, time; s = socket.create_server(('10.77.0.1', 29500)); print('up', flush=True); time.sleep(60)"
        store = network.start(0, sys.executable, "-c", code)
        assert store.stdout.readline() == "up\n"
        all_right(job(network, secret, [0, 1], TORCHELASTIC_RUN_ID="run"))


def self_connect(secret):
    """A rank that connects to its own host's port before rank 0 listens there, where nearly every attempt meets itself:
    the port is one of the few that the system may choose for the near end."""
    with Network(1) as network:
        for name, value in (("ip_local_port_range", "29500 29503"), ("tcp_tw_reuse", "1")):
            code = f"open('/proc/sys/net/ipv4/{name}', 'w').write('{value}')"
            assert network.start(0, sys.executable, "-c", code).wait(LIMIT) == 0
        early = job(network, secret, [0, 0], TANDEM_PORT=29500, only=1)
        time.sleep(1.5)
        assert early[0].poll() is None, early[0].communicate()
        # Rank 0 needs ports to choose from, for itself.
        code = "open('/proc/sys/net/ipv4/ip_local_port_range', 'w').write('29500 29999')"
        assert network.start(0, sys.executable, "-c", code).wait(LIMIT) == 0
        all_right(job(network, secret, [0, 0], TANDEM_PORT=29500, only=0) + early)


def main():
    if os.geteuid() != 0 or not shutil.which("ip"):
        print("skipped: network namespaces need root and iproute2")
        sys.exit(77)
    probe = subprocess.run(["unshare", "-n", "true"], capture_output=True)
    if probe.returncode != 0:
        print("skipped: this system does not give network namespaces")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        secret = pathlib.Path(folder) / "secret"
        secret.touch(mode=0o600)
        secret.write_text(secrets.token_hex(32))
        globals()[sys.argv[1]](secret)


main()
