"""Sandbox: runs untrusted Python against tests that it cannot see, with a verdict that it cannot forge.

    sandbox = Sandbox(Limits())
    await sandbox.start()                        # OperatorError if this host has no isolation
    outcome = await sandbox.run(Trial(code="def f(x): return x + 1", names=("f",), tests=("assert f(1) == 2",)))
    outcome.passed, outcome.reason

    server ──order──────────────────────────────┐
      │  one socket per job                     ▼
    zygote ──fork── monitor ─fork── tests (pid 1) ──fork── answer
    in bubblewrap,  deadline        secret, expected       untrusted code:
    sees no job                     values                 receives calls, returns data

Each answer runs in a new process with its own user, process, mount and IPC namespaces inside bubblewrap's (which add
network and host name), without capabilities, behind a seccomp filter and resource limits, with an empty environment, a
private /tmp, and no access to the host's files except a read-only Python interpreter. Without bubblewrap, Landlock and
seccomp are used instead, in a mount namespace that hides the host's files if the host allows one (`Layers` lists what
is enforced). The tests run in another process,
from which the answer was forked before the tests were read; values are exchanged between the two as plain data. So
`sys.exit(0)`, an `__eq__` that is always true, patched builtins, or inspection of frames, memory or /proc cannot make
an answer pass.

It does not protect against: vulnerabilities in the kernel or the CPU (use a virtual machine); an answer that infers the
test from its arguments, or has seen the expected values in its prompt; resource use up to the limits, which apply per
process (memory: `memory_mb` for each of `processes`); without bubblewrap, an answer that queries the host name, user
ids, whether a process exists, or the state of public system calls, and one that starts as many threads as the host
already runs; without a mount namespace, one that queries whether a file exists, its size and times. The tests and the
other fields of a row are trusted.
"""
