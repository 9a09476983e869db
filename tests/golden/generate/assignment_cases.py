"""Write groups to be divided, one a line: assignor, topics, then each member, with tabs between.

Topics are ``name:partitions``, a member is ``id;instance id;topics;owned partitions;generation``, lists have commas.
Member ids are single letters, few enough for Java's hash maps to have them in order.
"""

import random

ASSIGNORS = ("range", "roundrobin", "sticky", "cooperative-sticky")
GROUPS = 320


def group(rng: random.Random, name: str) -> str:
    counts = {f"t{number}": rng.randint(1, 8) for number in range(rng.randint(1, 6))}
    members = "ABCDEFGHI"[: rng.randint(1, 9)]

    def some_topics() -> list[str]:
        return rng.sample(sorted(counts), rng.randint(1, len(counts)))

    same = some_topics() if rng.random() < 0.5 else None
    topics_of = {member: same or some_topics() for member in members}
    owned: dict[str, list[str]] = {member: [] for member in members}
    if rng.random() < 0.75:
        owners = members if rng.random() < 0.4 else members[: max(1, len(members) // 2)]  # even, or a few have all
        for topic, count in counts.items():
            for number in range(count):
                owner = rng.choice(owners)
                if rng.random() < 0.85 and (topic in topics_of[owner] or rng.random() < 0.15):
                    owned[owner].append(f"{topic}:{number}")
    generation_of = dict.fromkeys(members, 5)
    if same and len(members) > 1 and rng.random() < 0.4:
        late, up_to_date = rng.sample(members, 2)  # one missed a rebalance and claims what another one has
        generation_of[late] = 4
        owned[late] += owned[up_to_date]
    fields = [name, ",".join(f"{topic}:{count}" for topic, count in counts.items())]
    for member in members:
        instance = f"i{rng.randint(0, 99):02}{member}" if rng.random() < 0.3 else ""
        said = (",".join(topics_of[member]), ",".join(owned[member]), str(generation_of[member]))
        fields.append(";".join((member, instance, *said)))
    return "\t".join(fields)


if __name__ == "__main__":
    source = random.Random(4)
    for number in range(GROUPS):
        print(group(source, ASSIGNORS[number % len(ASSIGNORS)]))
