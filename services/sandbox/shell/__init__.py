"""Shell box: a small Linux machine in which untrusted commands run one after another and keep their files.

    box = await ShellBox.start(BoxPlan(...))
    result = await box.run(("bash", "-c", "make test"), cwd="/app", timeout_s=60)
    await box.close()

Each box is a process of its own in new user, process, mount, network, IPC, host name and cgroup namespaces, without
capabilities and behind a seccomp filter. It sees the host's programs (/usr, /bin, /lib) read-only, a few files of /etc,
and an empty file system in memory, which disappears with it. Its network has only the loopback interface. If the server
runs as root, the box runs as the user nobody; inside, that user is called root.

It does not protect against vulnerabilities in the kernel or the CPU (use a virtual machine). It limits the memory of
each process, the number of processes and the size of all files, but not the total CPU time or memory of a box. What is
readable for everyone under /usr, or in folders that the operator adds, is readable in the box: keep secrets elsewhere.

It needs user namespaces. Landlock, which `Sandbox` uses without them, cannot give a box its own /app.
"""
