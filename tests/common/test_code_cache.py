"""Only code that this user compiled is loaded, as it was compiled; whatever else lies in the cache is compiled again."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from electrakit.common import code_cache
from electrakit.common.code_cache import find_danger, load_library, read_checked, safe_folder

OTHER_USER = 12_345
as_root = pytest.mark.skipif(os.getuid() != 0, reason="gives files to another user")


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Two libraries: `answer()` is 7 in ours, 666 in the planted one."""
    folder, made = tmp_path_factory.mktemp("libraries"), {}
    for answer in (7, 666):
        (folder / "source.c").write_text(f"int answer(void) {{ return {answer}; }}")
        made[answer] = folder / f"{answer}.so"
        command = ["cc", "-shared", "-fPIC", "-o", str(made[answer]), str(folder / "source.c")]
        subprocess.run(command, check=True)
    return made


class Cache:
    """Loads the library through the cache of a folder, and counts how often it is compiled."""

    def __init__(self, home: Path, library: Path) -> None:
        self.folder, self.library, self.num_builds = home / "electrakit", library, 0

    def build(self, path: Path) -> None:
        self.num_builds += 1
        shutil.copy(self.library, path)

    def answer(self) -> int:
        return load_library("kernels", "recipe", self.build).answer()

    @property
    def file(self) -> Path:
        (found,) = self.folder.glob("kernels-*.so")
        return found


@pytest.fixture
def cache(tmp_path: Path, libraries: dict[int, Path], monkeypatch) -> Cache:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return Cache(tmp_path / "home", libraries[7])


def test_it_is_compiled_once_and_stored_for_this_user_alone(cache):
    assert [cache.answer() for _ in range(3)] == [7, 7, 7] and cache.num_builds == 1
    assert cache.folder.stat().st_mode & 0o777 == 0o700 and cache.file.stat().st_mode & 0o777 == 0o600
    assert list(cache.folder.iterdir()) == [cache.file]


@pytest.mark.promise("Environment", "cut library in the cache of kernels", "compiled again")
@pytest.mark.parametrize("size", [0, 1, 4096, -1])
def test_a_file_that_was_cut_is_compiled_again(cache, size):
    cache.answer()
    os.truncate(cache.file, size if size >= 0 else cache.file.stat().st_size - 1)
    assert cache.answer() == 7 and cache.answer() == 7 and cache.num_builds == 2


@pytest.mark.promise("Environment", "flipped bit in the cache of kernels", "compiled again")
def test_a_flipped_bit_is_compiled_again(cache):
    cache.answer()
    content = bytearray(cache.file.read_bytes())
    content[len(content) // 2] ^= 1
    cache.file.write_bytes(content)
    assert cache.answer() == 7 and cache.num_builds == 2


@pytest.mark.promise("Environment", "library or link planted in the cache", "not loaded")
def test_a_library_without_our_hash_and_a_link_are_not_loaded(cache, libraries, tmp_path):
    cache.answer()
    path = cache.file
    shutil.copy(libraries[666], path)
    assert cache.answer() == 7
    elsewhere = tmp_path / "planted.so"
    shutil.copy(path, elsewhere)
    path.unlink()
    path.symlink_to(elsewhere)
    assert read_checked(path) is None and cache.answer() == 7
    assert not path.is_symlink() and cache.num_builds == 3


@pytest.mark.promise("Environment", "folder or pipe in the cache's place", "compiled again")
def test_a_folder_or_a_pipe_of_that_name_does_not_switch_it_off(cache):
    cache.answer()
    path = cache.file
    path.unlink()
    os.mkfifo(path)
    assert cache.answer() == 7 and cache.num_builds == 2
    path.unlink()
    path.mkdir()
    assert [cache.answer(), cache.answer()] == [7, 7] and cache.num_builds == 3
    path.unlink()
    path.mkdir()
    (path / "something").write_text("of the user's")
    assert [cache.answer(), cache.answer()] == [7, 7] and cache.num_builds == 5
    assert (path / "something").exists()


@pytest.mark.promise("Environment", "library of another user", "not loaded")
@as_root
def test_a_file_of_another_user_in_our_own_folder_is_not_loaded(cache):
    cache.answer()
    os.chown(cache.file, OTHER_USER, OTHER_USER)
    assert cache.answer() == 7 and cache.num_builds == 2 and cache.file.stat().st_uid == os.getuid()


@pytest.mark.promise("Environment", "cache that others may write", "not used")
def test_a_file_or_a_folder_above_that_others_may_write_is_not_trusted(cache):
    cache.answer()
    cache.file.chmod(0o666)
    assert cache.answer() == 7 and cache.num_builds == 2
    for folder in (cache.folder, cache.folder.parent):
        folder.chmod(0o777)
        assert "others may write in" in str(find_danger(cache.folder))
        assert cache.answer() == 7  # for this process alone
        folder.chmod(0o700)
    assert cache.num_builds == 4 and find_danger(cache.folder) is None and cache.answer() == 7
    assert cache.num_builds == 4
    cache.folder.parent.chmod(0o1777)  # as /tmp: others cannot replace what is ours
    assert find_danger(cache.folder) is None


@as_root
def test_a_parent_of_another_user_and_a_link_in_one_that_others_may_write_are_not_trusted(cache, tmp_path):
    cache.answer()
    os.chown(cache.folder.parent, OTHER_USER, OTHER_USER)
    assert "belongs to another user" in str(find_danger(cache.folder))
    os.chown(cache.folder.parent, 0, 0)
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "open" / "link").symlink_to(cache.folder)
    assert "others may write in" in str(find_danger(tmp_path / "open" / "link"))


AS_ANOTHER = ["setpriv", "--reuid", str(OTHER_USER), "--clear-groups", "unshare", "--user", "--map-current-user"]
AS_ANOTHER += [
    shutil.which("python3", path="/usr/bin") or sys.executable
]  # ours may be in a home that others cannot read


def can_be_another() -> bool:
    """Whether a process may run here in a namespace that root is no user of."""
    if os.getuid() != 0 or not (shutil.which("setpriv") and shutil.which("unshare")):
        return False
    return subprocess.run([*AS_ANOTHER, "-c", ""], capture_output=True).returncode == 0


@pytest.mark.promise("Environment", "container that root is no user of", "compiled code is kept")
@pytest.mark.skipif(not can_be_another(), reason="makes a namespace that root is no user of")
def test_in_a_container_that_root_is_no_user_of_a_folder_below_those_of_root_is_safe():
    code = "import os; from pathlib import Path; from code_cache import find_danger\n"
    code += "assert Path('/').stat().st_uid not in (0, os.getuid())\nprint(find_danger(Path('cache'), must_make=True))"
    with tempfile.TemporaryDirectory() as home:
        shutil.copy(code_cache.__file__, home)
        os.chown(home, OTHER_USER, OTHER_USER)
        done = subprocess.run([*AS_ANOTHER, "-c", code], cwd=home, capture_output=True, text=True)
    assert done.stdout == "None\n", done.stderr


def test_the_folder_of_the_compiler_is_private_where_ours_is_not_safe(cache):
    cache.answer()
    assert safe_folder(cache.folder / "compiled") == cache.folder / "compiled"
    cache.folder.parent.chmod(0o777)
    private = safe_folder(cache.folder / "compiled")
    assert private.stat().st_mode & 0o777 == 0o700 and not private.is_relative_to(cache.folder)


def test_without_files_in_memory_a_private_folder_does(cache, monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    assert [cache.answer(), cache.answer()] == [7, 7] and cache.num_builds == 1


def test_two_libraries_of_one_process_are_two(cache, libraries):
    assert cache.answer() == 7
    assert code_cache.load_bytes(libraries[666].read_bytes()).answer() == 666 and cache.answer() == 7


def test_what_nobody_used_for_a_month_is_removed(cache):
    cache.folder.mkdir(parents=True, mode=0o700)
    old, used, left = (cache.folder / name for name in ("kernels-old.so", "kernels-used.so", "build-left"))
    for path in (old, used):
        path.write_bytes(b"")
    left.mkdir()
    for path in (old, left):
        os.utime(path, (1e9, 1e9))
    cache.answer()
    assert not old.exists() and not left.exists() and used.exists()


def test_without_a_home_it_is_compiled_for_this_process(cache, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(code_cache, "cache_folder", lambda: Path("/proc/nowhere/electrakit"))
    assert cache.answer() == 7 and cache.num_builds == 1
