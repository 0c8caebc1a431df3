"""Answers that try to leave the jail. An answer that reaches or sees something outside prints ESCAPED."""

from pathlib import Path

from rollyard.records.data_files import INSTALLED

ESCAPES = {
    "reads_the_hosts_files": f"""
import os
project, profile = {str(INSTALLED)!r}, {str(Path.home() / ".bashrc")!r}
for name in ("/etc/passwd", "/etc/hostname", profile, "/var/log", "/home", "/sys/kernel", project, "/usr/bin/env"):
    try: print("ESCAPED", name, os.listdir(name) if os.path.isdir(name) else open(name, "rb").read(10))
    except OSError: pass
""",
    "reads_the_servers_environment_variables": "import os\nif os.environ: print('ESCAPED', dict(os.environ))",
    "sees_other_processes": """
import os
try: print(*["ESCAPED " + name for name in os.listdir("/proc") if name.isdigit()])
except OSError: pass
""",
    "signals_every_process": """
import os
for pid in {-1, os.getppid()} - {1}:  # process 1 runs the tests and takes no signal
    try: print("ESCAPED", os.kill(pid, 0), pid)
    except OSError: pass
""",
    "opens_sockets": """
import socket
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK):
    kind = socket.SOCK_RAW if family == socket.AF_NETLINK else socket.SOCK_STREAM
    try: print("ESCAPED", socket.socket(family, kind))
    except OSError: pass
""",
    "resolves_a_host_name": """
import socket
try: print("ESCAPED", socket.getaddrinfo("localhost.example", 80))
except OSError: pass
""",
    "writes_to_host_folders": """
import os
for folder in ("/", "/etc", "/var/tmp", "/dev/shm", "/dev", "/usr", "/jail", "/run", "/proc/sys/kernel"):
    try:
        open(folder + "/escaped", "w").write("x")
        print("ESCAPED", folder)
    except OSError: pass
""",
    "changes_its_python_installation": """
import os
for name in (os.__file__, os.path.dirname(os.__file__) + "/escaped.py"):
    try: print("ESCAPED", open(name, "a"))
    except OSError: pass
""",
    "mounts_a_file_system": """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for kind in (b"proc", b"tmpfs", b"sysfs"):
    if libc.mount(b"none", b"/tmp", kind, 0, None) == 0: print("ESCAPED", kind)
if libc.umount2(b"/proc", 2) == 0: print("ESCAPED")
""",
    "creates_a_user_namespace_to_become_root": """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x10000000) == 0: print("ESCAPED")
if libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0) > 0: print("ESCAPED by clone")
if os.geteuid() == 0: print("ESCAPED: root")
""",
    "becomes_root": """
import os
for call in (os.setuid, os.setgid, os.seteuid):
    try:
        call(0)
        print("ESCAPED", call)
    except OSError: pass
""",
    "holds_capabilities": """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
libc.capget(header, data)
if any(data): print("ESCAPED", list(data))
""",
    "leaves_by_chroot": """
import os
try:
    os.mkdir("/tmp/hole"); os.chroot("/tmp/hole")
    print("ESCAPED")
except OSError: pass
""",
    "creates_a_device": """
import os, stat
try:
    os.mknod("/tmp/disk", 0o600 | stat.S_IFBLK, os.makedev(254, 0))
    print("ESCAPED", open("/tmp/disk", "rb").read(16))
except OSError: pass
""",
    "loads_a_program_into_the_kernel": """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for number in (321, 298, 425, 323, 250, 246):  # bpf, perf_event_open, io_uring, userfaultfd, keyctl, kexec
    if libc.syscall(number, 0, 0, 0, 0, 0) >= 0 or ctypes.get_errno() != 1: print("ESCAPED", number)
""",
    "makes_x32_system_calls": """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall(0x40000000 + 39)
print("ESCAPED")
""",
    "runs_the_hosts_programs": """
import subprocess
for program in ("/bin/sh", "/usr/bin/env", "/usr/bin/bwrap", "/bin/ls"):
    try: print("ESCAPED", subprocess.run([program, "-c", "true"]))
    except OSError: pass
""",
    "renames_the_machine": """
import socket
try:
    socket.sethostname("escaped")
    print("ESCAPED")
except OSError: pass
""",
    "creates_shared_memory": """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
if libc.shmget(0x1234567, 4096, 0o1600) >= 0: print("ESCAPED")
""",
    "inherits_a_descriptor_of_the_server": """
import os, stat
for number in range(4, 1024):
    try: print("ESCAPED", number, os.fstat(number))
    except OSError: pass
if stat.S_ISSOCK(os.fstat(0).st_mode): print("ESCAPED: stdin")
""",
    "sends_a_datagram_without_connecting": """
import socket
try:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    print("ESCAPED")
    ours.sendto(b"x", "/dev/log")
except OSError: pass
""",
    "opens_a_socket_of_every_family": """
import ctypes
libc, pair = ctypes.CDLL(None, use_errno=True), (ctypes.c_int * 2)()
for family in range(46):
    for kind in (1, 2, 3, 4, 5, 10):
        if libc.syscall(41, family, kind, 0) >= 0: print("ESCAPED", family, kind)
        if (family, kind) != (1, 1) and libc.socketpair(family, kind, 0, pair) == 0: print("ESCAPED", family, kind)
""",
    "changes_modes_owners_times_and_attributes": f"""
import os
for name in ({str(INSTALLED)!r}, {str(INSTALLED / "README.md")!r}, os.__file__):
    for change in (lambda: os.chown(name, -1, -1), lambda: os.chmod(name, 0o777), lambda: os.utime(name),
                   lambda: os.setxattr(name, "user.escaped", b""), lambda: os.truncate(name, 0)):
        try: print("ESCAPED", name, change())
        except OSError: pass
""",
    "truncates_a_file_that_it_may_read": """
import os
try: print("ESCAPED", os.open(os.__file__, os.O_RDONLY | os.O_TRUNC))
except OSError: pass
""",
    "makes_the_kernel_signal_other_processes": """
import fcntl, os, socket
if os.getppid() > 1:  # process 1 takes no signal, and its namespace has no other process
    try: print("ESCAPED", fcntl.fcntl(socket.socketpair()[0], fcntl.F_SETOWN, os.getppid()))
    except OSError: pass
""",
    "lists_the_machines_mounts": """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for number in (457, 458):
    libc.syscall(number, 0, 0, 0, 0)
    if ctypes.get_errno() not in (1, 38): print("ESCAPED", number)
""",
    "follows_a_link": """
import os
for target in ("/etc", "/root", "/proc/1/root"):
    try:
        os.symlink(target, "/tmp/link")
        print("ESCAPED", os.listdir("/tmp/link"))
    except OSError: pass
try: print("ESCAPED", os.link(os.__file__, "/tmp/hard"))
except OSError: pass
""",
    "raises_its_limits": """
import resource
for limit in range(16):
    soft, hard = resource.getrlimit(limit)
    try:
        if hard != resource.RLIM_INFINITY: print("ESCAPED", limit, resource.setrlimit(limit, (hard, hard + 1)))
    except (OSError, ValueError): pass
""",
    "watches_the_hosts_files": """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
for folder in (b"/var/log", b"/home", b"/etc/ssl"):
    watch = libc.inotify_init1(0)
    if watch >= 0 and libc.inotify_add_watch(watch, folder, 2) >= 0: print("ESCAPED inotify", folder)
if libc.syscall(300, 0, 0) >= 0: print("ESCAPED fanotify")
""",
    "enters_the_hosts_folders": """
import os
for folder in ("/var/log", "/home", "/etc/ssl", "/sys/kernel"):
    try: print("ESCAPED", os.chdir(folder), os.getcwd())
    except OSError: pass
""",
    "reads_links_and_attributes_of_the_hosts_files": """
import os
for name in ("/etc/mtab", "/etc/localtime", "/bin", "/etc/os-release"):
    for look in (os.readlink, os.listxattr, os.statvfs):
        try: print("ESCAPED", name, look(name))
        except OSError: pass
""",
    "blocks_other_processes_with_a_file_lease": """
import fcntl, os
for name in (os.__file__, "/tmp/own"):
    try:
        file = os.open(name, os.O_RDONLY | (0 if name == os.__file__ else os.O_CREAT))
        print("ESCAPED", name, fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK))
    except OSError: pass
""",
}
