"""The description of the machine, from files as Linux writes them."""

import pytest

from aril.config import Context
from aril.runtime import target
from aril.runtime.target import cgroup_quota, generic_target, host_target, usable_cores


def write(root, path, text):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def quota(root, mine):
    write(root, "mine", mine)
    return cgroup_quota(str(root / "fs"), str(root / "mine"))


def test_no_limit(tmp_path):
    assert quota(tmp_path, "0::/\n") is None
    write(tmp_path, "fs/cpu.max", "max 100000\n")
    assert quota(tmp_path, "0::/user\n") is None
    assert cgroup_quota(str(tmp_path), str(tmp_path / "missing")) is None


def test_version_2_takes_the_least_of_all_groups_above(tmp_path):
    write(tmp_path, "fs/a/cpu.max", "150000 100000\n")
    write(tmp_path, "fs/a/b/cpu.max", "400000 100000\n")
    assert quota(tmp_path, "0::/a/b\n") == 1.5


def test_version_1(tmp_path):
    write(tmp_path, "fs/cpu,cpuacct/job/cpu.cfs_quota_us", "300000\n")
    write(tmp_path, "fs/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n")
    mine = "5:memory:/job\n4:cpu,cpuacct:/job\n0::/\n"
    assert quota(tmp_path, mine) == 3.0
    write(tmp_path, "fs/cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n")
    assert quota(tmp_path, mine) is None


def test_a_container_sees_its_own_group_at_the_root(tmp_path):
    write(tmp_path, "fs/cpu.max", "200000 100000\n")
    assert quota(tmp_path, "0::/kubepods/pod1234/abcd\n") == 2.0


def test_a_malformed_file_is_no_limit(tmp_path):
    write(tmp_path, "fs/cpu.max", "nonsense\n")
    assert quota(tmp_path, "0::/\n") is None


def test_the_setting_lowers_the_number_of_cores():
    with Context(NUM_CPU_THREADS=1):
        assert usable_cores() == 1
    with Context(NUM_CPU_THREADS=4096):
        assert usable_cores() == target._system_cores()


@pytest.mark.parametrize(
    ("arch", "flags", "expected"),
    [
        ("x86_64", "sse2", (16, 16, 16)),
        ("x86_64", "sse2 avx avx2 fma", (32, 32, 16)),
        ("x86_64", "avx2 avx512f avx512vl avx512bw avx512dq", (32, 64, 32)),  # Skylake: slower clock
        ("x86_64", "avx2 avx512f avx512vl avx512bw avx512dq avx512_vbmi2", (64, 64, 32)),
        ("aarch64", "fp asimd", (16, 16, 32)),
    ],
)
def test_vector_width_follows_the_features(arch, flags, expected):
    assert target._vectors(arch, frozenset(flags.split())) == expected


def test_cpuinfo_is_read_for_the_first_processor_only(tmp_path):
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nflags\t\t: fma avx2\n\nprocessor\t: 1\nflags\t\t: other\n")
    assert target._cpuinfo(str(tmp_path / "cpuinfo")) == {"processor": "0", "flags": "fma avx2"}


def test_caches(tmp_path):
    for index, (kind, level, size) in enumerate([("Data", 1, "48K"), ("Instruction", 1, "32K"), ("Unified", 2, "2M")]):
        for name, value in (("type", kind), ("level", level), ("size", size)):
            write(tmp_path, f"index{index}/{name}", f"{value}\n")
    assert target._caches(str(tmp_path)) == (48 << 10, 2 << 20, 4 << 20)


def test_keys_differ_where_code_may_differ():
    keys = {host_target().key, generic_target("x86_64").key, generic_target("aarch64").key}
    assert len(keys) == 3
