"""The sandbox: untrusted Python, tests that it cannot see, and a verdict that it cannot write.

    sandbox = Sandbox(Limits())
    await sandbox.start()                        # OperatorError when this machine offers no isolation
    outcome = await sandbox.run(Trial(code="def f(x): return x + 1", names=("f",), tests=("assert f(1) == 2",)))
    outcome.passed, outcome.reason

    server ──order──────────────────────────────┐
      │  one socket a job                       ▼
    zygote ──fork── warden ──fork── tests (pid 1) ──fork── answer
    in bubblewrap,  the clock       secret, expected       the untrusted code:
    knows no job                    values                 calls come in, data goes out

Each answer runs in a fresh process with user, process, mount and IPC namespaces of its own inside bubblewrap's (which
adds network and host name), without capabilities, behind a seccomp filter and resource limits, with an empty
environment, a /tmp of its own and nothing to see of the host but a read-only Python. Where namespaces cannot be had,
Landlock and seccomp stand in (`Layers` says what is in force). The tests run in another process, which the answer was
forked from before the tests were read; values cross between the two as plain data. So `sys.exit(0)`, an `__eq__` that
is always true, patched builtins and a look at frames, memory or /proc reach nothing that makes a pass.

What it does not protect against: a hole in the kernel itself or in the CPU (for that: a virtual machine); an answer
that learns from its arguments which test it is in, or has seen the expected values in its prompt; use of the machine
up to the limits, which count per process (memory: `memory_mb` for each of `processes`); without namespaces, an answer
that asks for the machine's name, users' numbers, whether a file or process exists, or the state of public system calls,
and one that starts as many threads as the machine runs already. The tests and what stands beside them in a row are
trusted as much as the row's author.
"""
