"""Checks that the files of the sysfs view agree with the verbs library.

usage: check.py DEVICE...   (the names of all devices)
Prints "the view agrees" at the end. A failed assertion names the difference.
"""

import ctypes
import errno
import fcntl
import glob
import os
import stat
import struct
import sys

CLASS = "/sys/class/infiniband"
# Offsets in struct ibv_port_attr.
STATE, CAPS, PHYS_STATE = 0, 16, 45


class Device(ctypes.Structure):
    """struct ibv_device."""

    _fields_ = [
        ("ops", ctypes.c_void_p * 2),
        ("node_type", ctypes.c_int),
        ("transport_type", ctypes.c_int),
        ("name", ctypes.c_char * 64),
        ("dev_name", ctypes.c_char * 64),
        ("dev_path", ctypes.c_char * 256),
        ("ibdev_path", ctypes.c_char * 256),
    ]


verbs = ctypes.CDLL("libibverbs.so.1", use_errno=True)
verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.POINTER(Device))
verbs.ibv_get_device_guid.restype = ctypes.c_uint64
verbs.ibv_get_device_guid.argtypes = [ctypes.c_void_p]
verbs.ibv_get_sysfs_path.restype = ctypes.c_char_p
verbs.ibv_open_device.restype = ctypes.c_void_p
verbs.ibv_open_device.argtypes = [ctypes.c_void_p]
verbs.ibv_query_gid.argtypes = [ctypes.c_void_p, ctypes.c_uint8, ctypes.c_int, ctypes.c_char_p]
query_gid_type = verbs.ibv_query_gid_type
query_gid_type.argtypes = [ctypes.c_void_p, ctypes.c_uint8, ctypes.c_uint, ctypes.POINTER(ctypes.c_uint)]


def read(*parts):
    with open("/".join(parts)) as file:
        return file.read()


def same(found, expected, what):
    assert found == expected, f"{what}: {found!r}, not {expected!r}"


def grouped(data):
    digits = data.hex()
    return ":".join(digits[i : i + 4] for i in range(0, len(digits), 4))


def read_sysfs_file(directory, name):
    buf = ctypes.create_string_buffer(256)
    length = verbs.ibv_read_sysfs_file(directory.encode(), name.encode(), buf, len(buf))
    return buf.raw[:length].decode() if length >= 0 else None


def check_port(context, device, path):
    for index in range(256):
        raw = ctypes.create_string_buffer(16)
        kind = ctypes.c_uint(99)
        if verbs.ibv_query_gid(context, 1, index, raw) != 0:
            break
        same(read(path, f"ports/1/gids/{index}").strip(), grouped(raw.raw), f"GID {index}")
        same(query_gid_type(context, 1, index, ctypes.byref(kind)), 0, "ibv_query_gid_type")
        # 1 is RoCE v2 in the private enumeration of this function.
        same((kind.value, read(path, f"ports/1/gid_attrs/types/{index}")), (1, "RoCE v2\n"), "type")
        ndev = read(path, f"ports/1/gid_attrs/ndevs/{index}").strip()
        same(os.listdir(f"{path}/device/net"), [ndev], "net")
        assert device in os.listdir(f"/sys/class/net/{ndev}/device/infiniband"), ndev
        read(f"/sys/class/net/{ndev}", "address")
    assert index > 0, "no GID"
    same(len(os.listdir(f"{path}/ports/1/gids")), index, "number of GIDs")
    port = bytearray(52)
    view = (ctypes.c_char * 52).from_buffer(port)
    same(verbs.ibv_query_port(ctypes.c_void_p(context), ctypes.c_uint8(1), view), 0, "ibv_query_port")
    state, caps = (struct.unpack_from("=I", port, at)[0] for at in (STATE, CAPS))
    same(int(read(path, "ports/1/state").split(":")[0]), state, "state")
    same(int(read(path, "ports/1/cap_mask"), 16), caps, "cap_mask")
    same(int(read(path, "ports/1/phys_state").split(":")[0]), port[PHYS_STATE], "phys_state")
    for counter in glob.glob(f"{path}/ports/1/*counters/*"):
        assert int(read(counter)) >= 0, counter


def check_char_device(path):
    for look in (os.stat, os.lstat):
        assert stat.S_ISCHR(look(path).st_mode), path
    assert os.access(path, os.R_OK | os.W_OK), path
    same(os.path.realpath(path), path, "real path")
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    # A command as rdma-core writes it: IB_USER_VERBS_CMD_GET_CONTEXT, 4 words in, 2 words out.
    try:
        os.write(fd, struct.pack("=IHHQ", 0, 4, 2, 0))
        raise AssertionError(f"{path} takes commands")
    except OSError as error:
        same(error.errno, errno.ENOSPC, "errno of a write")
    try:
        fcntl.ioctl(fd, 0xC0181B01, bytes(24))
        raise AssertionError(f"{path} takes ioctls")
    except OSError as error:
        same(error.errno, errno.ENOTTY, "errno of an ioctl")
    os.close(fd)


def check_device(device):
    name, chars = device.name.decode(), device.dev_name.decode()
    path = device.ibdev_path.decode()
    same(path, f"{CLASS}/{name}", "ibdev_path")
    assert os.path.islink(path), path
    real = os.path.realpath(path)
    assert real.startswith("/sys/devices/") and real.endswith(f"/infiniband/{name}"), real
    same(os.path.realpath(f"{path}/../.."), real.removesuffix(f"/infiniband/{name}"), "parent")
    assert f"{name}" in os.listdir(f"{path}/device/infiniband"), "device/infiniband"
    guid = verbs.ibv_get_device_guid(ctypes.addressof(device)).to_bytes(8, "little")
    for file in ("node_guid", "sys_image_guid"):
        same(read(path, file).strip(), grouped(guid), file)
    attributes = ["node_type", "node_guid", "fw_ver", "hca_type", "board_id", "node_desc"]
    attributes += ["device/vendor", "device/class", "device/numa_node", "device/local_cpus"]
    attributes += ["ports/1/state", "ports/1/rate", "ports/1/gids/0", "ports/1/pkeys/0"]
    for file in attributes:
        same(read_sysfs_file(path, file), read(path, file).strip(), file)
    same(read_sysfs_file(f"{path}/ports/1", "link_layer"), "Ethernet", "link_layer")
    same(read_sysfs_file(path, "no_such_file"), None, "no_such_file")
    verbs_path = device.dev_path.decode()
    same(verbs_path, f"/sys/class/infiniband_verbs/{chars}", "dev_path")
    same(read(verbs_path, "ibdev").strip(), name, "ibdev")
    number = os.stat(f"/dev/infiniband/{chars}").st_rdev
    same(read(verbs_path, "dev").strip(), f"{os.major(number)}:{os.minor(number)}", "dev")
    mad = chars.replace("uverbs", "umad")
    same(read(f"/sys/class/infiniband_mad/{mad}/ibdev").strip(), name, "umad")
    for node in (chars, mad, "rdma_cm"):
        check_char_device(f"/dev/infiniband/{node}")
    context = verbs.ibv_open_device(ctypes.addressof(device))
    assert context, "ibv_open_device"
    check_port(context, name, path)


def main():
    count = ctypes.c_int()
    devices = verbs.ibv_get_device_list(ctypes.byref(count))
    names = [devices[i].contents.name.decode() for i in range(count.value)]
    same(names, sys.argv[1:], "devices of the library")
    for directory in (CLASS, f"{CLASS}/"):
        same(sorted(os.listdir(directory)), sorted(names), "devices in /sys")
    assert "infiniband" in os.listdir("/sys/class"), "/sys/class"
    same(verbs.ibv_get_sysfs_path(), b"/sys", "ibv_get_sysfs_path")
    for index in range(count.value):
        check_device(devices[index].contents)
    # Other device files are unchanged.
    for path in ("/dev/null", "/dev/zero", "/dev/urandom"):
        assert stat.S_ISCHR(os.lstat(path).st_mode), path
    os.close(os.open("/dev/null", os.O_RDWR))
    # Relative paths out of the view, and into it.
    same(os.stat("/dev/infiniband/../null").st_rdev, os.stat("/dev/null").st_rdev, "../null")
    same(sorted(os.listdir("/sys/class/infiniband/../net")), sorted(os.listdir("/sys/class/net")), "../net")
    same(sorted(os.listdir("/sys/class/net/../infiniband")), sorted(names), "../infiniband")
    assert os.listdir("/sys/class/net"), "/sys/class/net"
    primary, secondary = os.openpty()
    os.write(secondary, b"x")
    same(os.read(primary, 1), b"x", "a pseudo-terminal")
    print("the view agrees")


main()
