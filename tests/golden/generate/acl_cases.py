"""Write sets of access control lists, one a line: whether everybody is allowed where there is none, then each entry,
with tabs between. An entry is ``type|name|pattern|principal|host|operation|permission``, in Kafka's numbers.

``python acl_cases.py [SETS [SEED]]``. What is asked of each set, in this order: every principal of ``PRINCIPALS`` at
every host of ``HOSTS``, each with every operation (3 to 15); about every name of ``NAMES`` as topic, group and
transactional id, and at last whether any resource of that type is allowed.
"""

import random
import sys

PRINCIPALS = ("User:root", "User:a", "User:b")
HOSTS = ("10.0.0.1", "10.0.0.2")
NAMES = ("a", "ab", "abc", "abd", "b", "hardcode")
TYPES = (2, 3, 5)
OPERATIONS = range(3, 16)
SETS = 120


def one_set(rng: random.Random) -> str:
    denying = rng.choice((0, 0.1, 0.5))
    entries = []
    for _ in range(rng.choice((0, 1, 2, 5, 12, 40))):
        name = rng.choice((*NAMES, "*", "h"))
        pattern = 3 if name == "*" else rng.choice((3, 4))
        operation = rng.choice((2, *OPERATIONS))
        permission = 2 if rng.random() < denying else 3
        principal = rng.choice((*PRINCIPALS, "User:*", "Group:a"))
        host = rng.choice((*HOSTS, "*", "*"))
        fields = (rng.choice(TYPES), name, pattern, principal, host, operation, permission)
        entries.append("|".join(map(str, fields)))
    return "\t".join((str(rng.randint(0, 1)), *dict.fromkeys(entries)))


if __name__ == "__main__":
    source = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 7)
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else SETS):
        print(one_set(source))
