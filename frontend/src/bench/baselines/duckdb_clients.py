"""DuckDB beside Carousel: one process, one database in memory, a thread and a cursor for each client.

Started by `carousel bench sql` and `carousel bench scan` with the Parquet file of the table and the number of threads
that DuckDB may use. Reads commands as lines, answers each in lines:

    questions N              followed by N lines, each the number of rows of the answer, a statement and its parameters,
                             separated by tabs -> "ok"
    answer I                 -> the number of rows of the answer, then a line for each row
    turn SECONDS,MORE,N      followed by N lines, one for each client: places of questions in the order in which it asks them,
                             over and over again; what has not ended MORE seconds later is cancelled -> the seconds that it
                             took, then all latencies in microseconds, then how long those had taken that were cancelled;
                             or "error" and the reason
"""

import sys
import threading
import time

import duckdb


def literal(text):
    return "'" + text.replace("'", "''") + "'"


class Question:
    def __init__(self, line):
        rows, self.sql, *self.parameters = line.split("\t")
        self.rows = int(rows)

    def prepare(self, cursor, name):
        """Prepares the statement, and gives the one that executes it."""
        cursor.execute(f"PREPARE {name} AS {self.sql}")
        return f"EXECUTE {name}({', '.join(map(literal, self.parameters))})"


def field(value):
    return "" if value is None else str(value)


def client(connection, statements, start, times, latencies, cancelled, failures):
    """Asks one statement after the other between two times (which are told later). The first one is due at the former:
    a client that does not come to ask waits as well."""
    start.wait()
    begun, end = times
    step = 0
    while (now := time.monotonic()) < end:
        if step > 0:
            begun = now
        statement, expected = statements[step % len(statements)]
        took = latencies
        try:
            rows = len(connection.execute(statement).fetchall())
            if rows != expected:
                raise ValueError(f"{rows} rows instead of {expected}: {statement}")
        except duckdb.InterruptException:
            took = cancelled
        except Exception as error:  # told to whoever asked
            failures.append(error)
            return
        took.append(round((time.monotonic() - begun) * 1e6))
        step += 1
    if step == 0:
        cancelled.append(round((now - begun) * 1e6))


def prepare(connection, questions, hands):
    """A cursor for each hand, and its statements with the numbers of rows of their answers."""
    clients = []
    for hand in hands:
        cursor = connection.cursor()
        prepared = {place: (questions[place].prepare(cursor, f"q{place}"), questions[place].rows) for place in set(hand)}
        clients.append((cursor, [prepared[place] for place in hand]))
    return clients


def turn(clients, seconds, more):
    start, times, latencies, cancelled, failures = threading.Event(), [], [], [], []
    arguments = (start, times, latencies, cancelled, failures)
    threads = [threading.Thread(target=client, args=(*each, *arguments)) for each in clients]
    for thread in threads:
        thread.start()
    begun = time.monotonic()
    end = begun + seconds
    times.extend((begun, end))
    start.set()
    for thread in threads:
        thread.join(max(0.0, end + more - time.monotonic()))
    # Who has not yet begun to execute what is to be cancelled is told again.
    while any(thread.is_alive() for thread in threads):
        for (cursor, _), thread in zip(clients, threads):
            if thread.is_alive():
                cursor.interrupt()
        time.sleep(0.05)
    elapsed = time.monotonic() - begun
    if failures:
        raise failures[0]
    return elapsed, latencies, cancelled


def main(path, threads):
    connection = duckdb.connect(config={"threads": threads})
    connection.execute("SET enable_progress_bar = false")  # it would be printed among the answers
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute(f"CREATE TABLE ticket AS FROM read_parquet({literal(path)})")
    rows = connection.execute("SELECT count(*) FROM ticket").fetchone()[0]
    print(duckdb.__version__, rows, flush=True)
    questions, hands, clients = [], [], []
    for line in sys.stdin:
        command, argument = line.split()
        if command == "questions":
            questions = [Question(sys.stdin.readline().rstrip("\n")) for _ in range(int(argument))]
            print("ok")
        elif command == "answer":
            cursor = connection.cursor()
            rows = cursor.execute(questions[int(argument)].prepare(cursor, "q")).fetchall()
            print(len(rows))
            for row in rows:
                print("".join(field(value) + "|" for value in row))
        elif command == "turn":
            seconds, more, count = argument.split(",")
            asked = [[int(place) for place in sys.stdin.readline().split()] for _ in range(int(count))]
            try:
                if asked != hands:
                    hands, clients = asked, prepare(connection, questions, asked)
                elapsed, latencies, cancelled = turn(clients, float(seconds), float(more))
            except Exception as error:
                print("error", " ".join(str(error).split()))
            else:
                print(elapsed)
                print(*latencies)
                print(*cancelled)
        sys.stdout.flush()


main(sys.argv[1], int(sys.argv[2]))
