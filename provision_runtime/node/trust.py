"""Whether other users could change what runs from a path or what is written there, and whether those
who should read it can. Nodes and the host both ask here.

A path is looked at as it is written, folder by folder and link by link: who may write to a folder may
replace what is in it, and the owner of a link decides where it leads. Trusted are root, the user of
this process, and the members of the one group that the lab names (`trusted_group` in nodes.yml).
Only they can change what was found safe, so it stays safe until it is used.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..fs.mounts import Mount

MOST_LINKS = 40  # as many as Linux follows: path_resolution(7)
UID_MAP = "/proc/self/uid_map"
MOUNTINFO = "/proc/self/mountinfo"
OVERFLOW_UID = "/proc/sys/kernel/overflowuid"
# acl(5); linux/posix_acl_xattr.h: a version, then tag, permissions and number of each entry.
ACCESS_LIST, DEFAULT_LIST = "system.posix_acl_access", "system.posix_acl_default"
USER, OWNING_GROUP, GROUP, MASK, OTHER = 2, 4, 8, 16, 32
READ, WRITE, SEARCH = 4, 2, 1
# RFC 7530, 6.2.1: a count, then type, flags, rights and name of each entry.
NFS4_LIST = "system.nfs4_acl"
NFS4_ALLOW, NFS4_GROUP = 0, 0x40
# The rights to write or add, to append, to delete entries or itself, to set rights and owner.
NFS4_WRITE = 0x2 | 0x4 | 0x40 | 0x10000 | 0x40000 | 0x80000
GROUP_READERS = "group:"


def reader_problem(path: str, readers: str) -> str | None:
    """What keeps readers from a file, or from what will be made at a path; None if nothing does.

    readers: `all`, or `group:NAME`.
    """
    try:
        gid = readers_gid(readers)
    except KeyError:
        return f"there is no such group as in `readers: {readers}`"
    whom = "other users" if gid is None else f"the group {readers[len(GROUP_READERS) :]}"
    trust = Trust()
    for _, entry, status in _components(path):
        if status is None or stat.S_ISLNK(status.st_mode):
            continue
        mount = trust.fuse_mount(entry)
        if mount is not None and "allow_other" not in mount.options.split(","):
            return (
                f"{entry} is mounted with FUSE, and only {_user_name(_user_of(mount))} can read it"
            )
        needed = SEARCH if stat.S_ISDIR(status.st_mode) else READ | SEARCH
        if all(needed & ~granted for granted in _granted(entry, status, gid)):
            return f"{whom} may not read {entry} (mode {stat.S_IMODE(status.st_mode):o})"
    return None


def readers_gid(readers: str) -> int | None:
    """The group that `readers` names; None for all users. Raises KeyError if there is none."""
    if not readers.startswith(GROUP_READERS):
        return None
    import grp

    return grp.getgrnam(readers[len(GROUP_READERS) :]).gr_gid


def _granted(entry: str, status: os.stat_result, gid: int | None) -> list[int]:
    """What a user may do who is in this group alone, by each permission that applies."""
    groups = []
    if gid is not None:
        entries = _access_list(entry, ACCESS_LIST) or [(OWNING_GROUP, status.st_mode >> 3 & 7, 0)]
        for tag, permissions, number in entries:
            if (tag == GROUP and number == gid) or (tag == OWNING_GROUP and status.st_gid == gid):
                groups.append(permissions & _mask(entries))
    return groups or [status.st_mode & 7]


class Trust:
    """Whom this process trusts: trusted_group is a name, empty for none; trusted_user one more user."""

    def __init__(self, trusted_group: str = "", trusted_user: int = 0) -> None:
        self._group = trusted_group
        self._users: dict[int, bool] = {0: True, os.geteuid(): True, trusted_user: True}
        self._mounts: dict[str, Mount] | None = None
        self._gid: int | None = None
        with contextlib.suppress(KeyError):  # `path_problem` reports it
            self._gid = readers_gid(GROUP_READERS + trusted_group) if trusted_group else None

    def path_problem(self, path: str) -> str | None:
        """How another user could change what runs from a path or is made there; None if nobody can.

        Of a path that does not exist, the part that does. Raises OSError where that cannot be seen.
        """
        if self._group and self._gid is None:
            return f"there is no group {self._group}, which `trusted_group` in nodes.yml names"
        problem = self._owner("/", os.lstat("/"))
        for folder, entry, status in _components(path):
            parent = os.lstat(folder)
            # In a sticky folder only its owner may rename or remove an entry.
            if problem is None and not parent.st_mode & stat.S_ISVTX:
                problem = self._writer(folder, parent)
            if problem is not None:
                return problem
            if status is None:
                return self._heir(folder)
            problem = self._owner(entry, status)
        end = os.path.realpath(path)
        return problem or self._writer(end, os.lstat(end)) or self._heir(end)

    def entries_problem(self, folder: str, is_deep: bool = False) -> str | None:
        """The same of what lies in a folder that is safe itself; is_deep: in the folders below, too.
        None if there is no such folder."""
        folder = os.path.realpath(folder)
        try:
            names = os.listdir(folder)
        except FileNotFoundError:
            return None
        for name in names:
            problem = self._entry_problem(os.path.join(folder, name), is_deep)
            if problem is not None:
                return problem
        return None

    def _entry_problem(self, entry: str, is_deep: bool) -> str | None:
        try:
            status = os.lstat(entry)
        except FileNotFoundError:  # of a run that ended meanwhile
            return None
        except OSError as error:
            # The server of a FUSE mount is dead, or serves its own user only.
            if error.errno not in (errno.ENOTCONN, errno.EACCES) or self.fuse_mount(entry) is None:
                raise
            return self._mounting_user(entry)
        problem = self._owner(entry, status)
        if problem is not None or stat.S_ISLNK(status.st_mode):
            return problem
        if not is_deep or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            problem = self._writer(entry, status)
        if problem is None and is_deep and stat.S_ISDIR(status.st_mode):
            problem = self.entries_problem(entry, is_deep)
        return problem

    def _owner(self, path: str, status: os.stat_result) -> str | None:
        if not self._trusts_user(status.st_uid):
            kind = "the link " if stat.S_ISLNK(status.st_mode) else ""
            return f"{kind}{path} belongs to {_user_name(status.st_uid)}"
        return self._mounting_user(path)

    def _mounting_user(self, path: str) -> str | None:
        """A FUSE file system reports what its server likes, of owners too."""
        mount = self.fuse_mount(path)
        if mount is None or self._trusts_user(_user_of(mount)):
            return None
        return f"{path} is a file system that {_user_name(_user_of(mount))} mounted with FUSE"

    def _writer(self, path: str, status: os.stat_result) -> str | None:
        """Who else may write to it."""
        mode = stat.S_IMODE(status.st_mode)
        if mode & stat.S_IWOTH:
            return f"every user may write to {path} (mode {mode:o})"
        if mode & stat.S_IWGRP:
            # If there is an access list, these bits are its mask.
            entries = _access_list(path, ACCESS_LIST)
            if entries:
                return self._listed_writer(path, status, entries)
            if not self._trusts_group(status.st_gid):
                group = _group_name(status.st_gid)
                return (
                    f"the group {group} may write to {path} (mode {mode:o}); if you trust all its "
                    f"members: `trusted_group: {group}` in nodes.yml"
                )
        # Who else by a list of NFS version 4: what it gives to owner, group and everyone shows
        # in the permissions too.
        try:
            for kind, flags, rights, name in _nfs4_entries(_attribute(path, NFS4_LIST)):
                is_named = kind == NFS4_ALLOW and not name.endswith("@")
                if is_named and rights & NFS4_WRITE and not self._trusts_name(name, flags):
                    return f"an access list (nfs4_getfacl) lets {name} write to {path}"
        except (struct.error, UnicodeDecodeError):
            return f"{path} has an access list of NFS that cannot be read"
        return None

    def _heir(self, folder: str) -> str | None:
        """Who else may write to what is made in a folder."""
        entries = _access_list(folder, DEFAULT_LIST)
        return self._listed_writer(folder, os.lstat(folder), entries, what="what is made in ")

    def _listed_writer(
        self,
        path: str,
        status: os.stat_result,
        entries: list[tuple[int, int, int]],
        what: str = "",
    ) -> str | None:
        for tag, permissions, number in entries:
            if not permissions & WRITE or (tag != OTHER and not _mask(entries) & WRITE):
                continue
            gid = status.st_gid if tag == OWNING_GROUP else number
            if tag == OTHER:
                who = "every user"
            elif tag == USER and not self._trusts_user(number):
                who = _user_name(number)
            elif tag in (GROUP, OWNING_GROUP) and not self._trusts_group(gid):
                who = f"the group {_group_name(gid)}"
            else:
                continue
            return f"an access list (getfacl) lets {who} write to {what}{path}"
        return None

    def _trusts_name(self, name: str, flags: int) -> bool:
        """name: `ann@lab.example`, as the file server has it."""
        import pwd

        user = name.partition("@")[0]
        if flags & NFS4_GROUP:
            return user == self._group
        try:
            return self._trusts_user(pwd.getpwnam(user).pw_uid)
        except KeyError:
            return False

    def _trusts_user(self, uid: int) -> bool:
        import pwd

        if uid not in self._users:
            self._users[uid] = _may_be_root(uid)
            with contextlib.suppress(KeyError):
                user = pwd.getpwuid(uid)
                if self._gid is not None and self._gid in os.getgrouplist(
                    user.pw_name, user.pw_gid
                ):
                    self._users[uid] = True
        return self._users[uid]

    def _trusts_group(self, gid: int) -> bool:
        """Also a trusted user's private group, of the same name and with nobody else in it, as most
        systems make one for every user."""
        import grp
        import pwd

        if gid == self._gid:
            return True
        try:
            group = grp.getgrgid(gid)
            user = pwd.getpwnam(group.gr_name)
        except KeyError:
            return False
        members = {entry.pw_name for entry in pwd.getpwall() if entry.pw_gid == gid}
        is_private = user.pw_gid == gid and members.union(group.gr_mem) <= {user.pw_name}
        return is_private and self._trusts_user(user.pw_uid)

    def fuse_mount(self, path: str) -> Mount | None:
        """The FUSE file system that is mounted at a path."""
        if self._mounts is None:
            self._mounts = {}
            with open(MOUNTINFO, errors="surrogateescape") as file:
                text = file.read()
            if " - fuse" in text:
                from ..fs import mounts  # importing that takes as long as all of this

                self._mounts = {mount.point: mount for mount in mounts.parse(text)}
        mount = self._mounts.get(path)  # the last of several: it hides the others
        return mount if mount is not None and mount.type.startswith("fuse") else None


def _components(path: str) -> Iterator[tuple[str, str, os.stat_result | None]]:
    """Everything that a path leads through: the real folder in which it lies, its own path, and its
    status, which is None for the first that does not exist; there it ends."""
    names = os.path.join(os.getcwd(), path).split("/")[::-1]
    folder, links = "/", 0
    while names:
        name = names.pop()
        if name == "..":
            folder = os.path.dirname(folder)
        if name in ("", ".", ".."):
            continue
        entry = os.path.join(folder, name)
        try:
            status = os.lstat(entry)
        except FileNotFoundError:
            yield folder, entry, None
            return
        yield folder, entry, status
        if not stat.S_ISLNK(status.st_mode):
            folder = entry
            continue
        links += 1
        if links > MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        target = os.readlink(entry)
        names += target.split("/")[::-1]
        if target.startswith("/"):
            folder = "/"


def _may_be_root(uid: int) -> bool:
    """Whether the system's root has this number here: in a user namespace that does not map it
    (user_namespaces(7))."""
    with open(OVERFLOW_UID) as file:
        if uid != int(file.read()):
            return False
    with open(UID_MAP) as file:
        ranges = [line.split() for line in file]
    return not any(int(outside) == 0 for _, outside, _ in ranges)


def _access_list(path: str, name: str) -> list[tuple[int, int, int]]:
    """Tag, permissions and number of every entry; none if there is no list."""
    data = _attribute(path, name)
    return list(struct.iter_unpack("<HHI", data[4:]))


def _mask(entries: list[tuple[int, int, int]]) -> int:
    """What a list gives to users and groups at most."""
    masks = [permissions for tag, permissions, _ in entries if tag == MASK]
    return masks[0] if masks else READ | WRITE | SEARCH


def _nfs4_entries(data: bytes) -> Iterator[tuple[int, int, int, str]]:
    if not data:
        return
    (count,) = struct.unpack_from(">I", data)
    offset = 4
    for _ in range(count):
        kind, flags, rights, length = struct.unpack_from(">4I", data, offset)
        offset += 16
        (name,) = struct.unpack_from(f"{length}s", data, offset)
        offset += (length + 3) & ~3
        yield kind, flags, rights, name.decode()


def _attribute(path: str, name: str) -> bytes:
    """An extended attribute; empty where there is none, or the file system has no such."""
    try:
        return os.getxattr(path, name, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.ENODATA, errno.ENOTSUP):
            raise
        return b""


def _user_of(mount: Mount) -> int:
    """Who mounted a FUSE file system."""
    for option in mount.options.split(","):
        if option.startswith("user_id="):
            return int(option[len("user_id=") :])
    return 0  # mounted by root before this option existed, or by the system


def _user_name(uid: int) -> str:
    import pwd

    try:
        return f"the user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"the user {uid}"


def _group_name(gid: int) -> str:
    import grp

    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
