"""Processes that work beside each other in a test, and end it at once if one of them fails."""

import multiprocessing
import os
import traceback
from multiprocessing import connection

import tqcache


def run_together(work, arguments, folder) -> list[str]:
    """Calls work(*one) in a process for each one of `arguments`, and returns the text that each of
    them returns. As soon as one process fails all others are ended, and its traceback is the
    message of an AssertionError. There is no time limit: a process that dies is noticed by its
    end."""
    context = multiprocessing.get_context("spawn")
    results = [os.path.join(folder, f"process-{i}.txt") for i in range(len(arguments))]
    processes = [context.Process(target=_run, args=(work, one, result), name=f"process {i}")
                 for i, (one, result) in enumerate(zip(arguments, results))]
    running = []
    try:
        for process in processes:
            process.start()
            running.append(process)
        while running:
            connection.wait([process.sentinel for process in running])
            for process in [one for one in running if one.exitcode is not None]:
                running.remove(process)
                if process.exitcode != 0:
                    raise AssertionError(
                        f"{process.name} ended with status {process.exitcode}\n"
                        + _text(results[processes.index(process)]))
    finally:
        for process in running:
            process.kill()
            process.join()
    return [_text(result) for result in results]


def _text(path) -> str:
    if not os.path.exists(path):
        return ""
    with open(path) as file:
        return file.read()


def _run(work, arguments, result) -> None:
    status = 0
    try:
        text = work(*arguments)
    except BaseException:
        text, status = traceback.format_exc(), 1
    with open(result, "w") as file:
        file.write(text)
    if status:
        raise SystemExit(status)


def patiently(call, *arguments):
    """The result of a call to a store that others keep busy, however long they do."""
    while True:
        try:
            return call(*arguments)
        except tqcache.BusyError:
            pass
