"""Lines of kernel logs, real ones and those of documentation, and how they are judged."""

from __future__ import annotations

import pytest

from provision_runtime.checks.kernel_log import catalog, kernel_findings
from provision_runtime.report.codec import packaged_json
from provision_runtime.report.findings import BY_AREA

XID = "[  900.1] NVRM: Xid (PCI:0000:1b:00): "
LINK_DOWN = "[  912.0] mlx5_core 0000:9a:00.0 ib2: Link down"
LINK_UP = "[  950.0] mlx5_core 0000:9a:00.0 ib2: Link up"
IB = "[  901.0] mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link "
NFS = "[  500.0] nfs: server filer not responding, still trying"
FATAL_AER = "pcieport 0000:00:1c.0: AER: Uncorrected (Fatal) error received: 0000:1b:00.0"
CORRECTED_AER = "[  77.1] pcieport 0000:16:01.0: AER: Corrected error received: 0000:1b:00.0"


@pytest.mark.parametrize(
    ("line", "id", "part"),
    [
        (XID + "79, pid=1, GPU has fallen off the bus.", "gpu-xid", "0000:1b:00, at [900.1]"),
        ("NVRM: Xid (0000:65:00): 79, GPU has fallen off the bus.", "gpu-xid", "on 0000:65:00"),
        ("NVRM: Xid (PCI:0000:65:00 GPU-I:05): 95, pid=7194, Uncontained", "gpu-xid", "0000:65:00"),
        ("Nov  3 05:46:34 n1 kernel: NVRM: Xid (0002:00): 48, 0000", "gpu-xid", "[Nov  3 05:46:34]"),
        (XID + "149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 12 (0x004505c6 0x0)", "gpu-xid", "Fatal"),
        (XID + "145, pid=8, name=ray::Fatal, RLW_CTRL Nonfatal XC1 i0 Link -1 (0x1)",
         "gpu-event", "Nonfatal"),
        (XID + "145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2)", "gpu-event", "Nonfatal"),
        (XID + "146, TLW_RX", "gpu-xid-unknown", "Xid 146"),
        (XID + "154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
         "gpu-xid", "Node Reboot Required"),
        (XID + "154, GPU recovery action changed from 0x0 (None) to 0x9 (Levitate)",
         "gpu-xid-unknown", "Levitate"),
        (XID + "94, pid=7, Contained: CE User Channel", "gpu-event", "contained"),
        (XID + "999, something new", "gpu-xid-unknown", "Xid 999 (not in the catalog)"),
        (XID + "what?", "gpu-xid-unknown", "Xid ?"),
        *((XID + f"{number}, pid=4242, name=python", None, "") for number in (13, 31, 43, 45)),
        *((XID + f"{number}, pid=4242", "gpu-xid", f"Xid {number} (")
          for number in (46, 61, 74, 109, 110, 119, 136, 143, 155, 156, 158)),
        ("nvidia-nvswitch3: SXid (PCI:0000:c6:00.0): 19084, Non-fatal, Link 29 AN1 Heartbeat",
         "gpu-event", "on 0000:c6:00.0"),
        ("nvidia-nvswitch3: SXid (PCI:0000:c6:00.0): 14999, Fatal, Link 3 new", "nvswitch-sxid", ""),
        ("nvidia-nvswitch2: SXid (PCI:0000:c4:00.0): 12020, Severity 5 Engine instance 00",
         "nvswitch-sxid", "egress sequence ID error"),
        ("nvidia-nvswitch2: SXid (PCI:0000:c4:00.0): 77777, Data {0x5}", "gpu-xid-unknown", "77777"),
        ("NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.", "gpu-xid", "0000:29:00.0"),
        ("NVRM: fallen off the bus and is not responding to commands.", "gpu-xid", ""),
        ("NVRM: GPU 0000:04:00.0: RmInitAdapter failed! (0x26:0xffff:1290)", "gpu-init-failed", "04"),
        ("NVRM: RmInitAdapter failed! (0x22:0x56:884)", "gpu-init-failed", ""),
        ("NVRM: GPU0 RmInitAdapter: Cannot initialize GSP firmware RM", "gpu-init-failed", ""),
        ("NVRM: krcWatchdog_IMPL: RC watchdog: GPU is probably locked!", "gpu-event", "locked"),
        ("[ 500.2] bnxt_en 0000:41:00.0 eth0: NIC Link is Down", "nic-link-down", "0000:41:00.0"),
        ("LustreError: 166-1: MGC10.0.0.1@o2ib: Connection to MGS (at 10.0.0.1@o2ib) was lost; in "
         "progress operations using this service will fail", "server-hangs", "MGC10.0.0.1@o2ib"),
        ("NVRM: The NVIDIA probe routine failed for 1 device(s).", "gpu-init-failed", ""),
        (LINK_DOWN, "nic-link-down", "0000:9a:00.0"),
        ("[    9.0] mlx5_core 0000:9a:00.0 eth2: Link down", None, ""),  # at boot
        ("mlx5_core 0000:12:00.0: Port module event: module 0, Cable unplugged", "nic-link-down", ""),
        ("mlx5_core 0000:12:00.0: Port module event: module 0, Cable plugged", None, ""),
        ("mlx5_core 0000:12:00.0: print_health:403: device's health compromised", "nic-fault", "12"),
        ("NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 0 timed out", "nic-fault", "eth0"),
        ("pcieport 0000:00:1c.0: DPC: containment event, status:0x1f01", "pcie-fatal", "1c.0"),
        ("[9.1] " + FATAL_AER, "pcie-fatal", "0000:00:1c.0, at [9.1]"),
        ("nvidia 0000:1b:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal)", "pcie-corrected", ""),
        (CORRECTED_AER, None, ""),
        ("\n".join([CORRECTED_AER] * 120), "pcie-corrected", "120 times on 0000:16:01.0"),
        ("mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 1", "machine-check", "3"),
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0", "machine-check", "MC0"),
        ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0", "memory-corrected", "MC0"),
        ("mce: [Hardware Error]: Machine check events logged", "memory-corrected", "once"),
        (NFS, "server-hangs", "once on filer, at [500.0]"),
        ("Lustre: fs-OST0000-osc-ffff8800: Connection to fs-OST0000 (at 10.0.0.1@tcp) was lost; in "
         "progress operations using this service will wait", "server-hangs", "fs-OST0000"),
        ("INFO: task python:1234 blocked for more than 122 seconds.", "task-hung", "python"),
        ("watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:9]", "task-hung", "CPU#3"),
        ("kern  :err   : 2026-01-21T08:44:30,287197+00:00 Out of memory: Killed process 9 (python)",
         "out-of-memory", "on python, at [2026-01-21T08:44:30]"),
        # A program met the limit of its own group, as jobs of all users do.
        ("Memory cgroup out of memory: Killed process 4 (pt_data_worker)", None, ""),
        # What comes after it ends it.
        (f"{XID}79, fallen\n[950.0] NVRM: loading NVIDIA UNIX x86_64 Kernel Module", "gpu-event",
         "it is over since [950.0]"),
        (f"{XID}62, halt\n{XID}154, changed from 0x1 (GPU Reset Required) to 0x0 (None)",
         "gpu-event", "Xid 62"),
        (f"{XID}154, changed from 0x0 (None) to 0x4 (Drain and Reset)\n"
         f"{XID}154, changed from 0x4 (Drain and Reset) to 0x1 (GPU Reset Required)",
         "gpu-xid", "GPU Reset Required"),
        (f"{LINK_DOWN}\n{LINK_UP}", "kernel-event-past", "over since [950.0]"),
        (f"{LINK_UP}\n{LINK_DOWN}", "nic-link-down", "at [912.0]"),
        (f"{LINK_DOWN}\n{LINK_UP.replace('9a', '9b')}", "nic-link-down", "9a"),
        (f"{NFS}\n[560.0] nfs: server filer OK", "kernel-event-past", "filer"),
        (f"{NFS}\n[560.0] nfs: server other OK", "server-hangs", "filer"),
        (f"{FATAL_AER}\npcieport 0000:00:1c.0: AER: device recovery successful",
         "kernel-event-past", "1c.0"),
        ("[4.2] nvidia-nvlink: Nvlink Core is being initialized, major device number 510", None, ""),
        # Lines that other drivers, releases of the kernel, and servers write.
        (IB + "DOWN", "nic-link-down", "mlx5_5, at [901.0]"),
        (IB + "INIT", "nic-link-down", "mlx5_5"),  # no subnet manager
        (f"{IB}DOWN\n{IB}INIT\n{IB}ACTIVE", "kernel-event-past", "mlx5_5"),
        ("bond0: (slave ens1f0): link status definitely down, disabling", "nic-link-down", "ens1f0"),
        ("mlx5_core: probe of 0000:01:00.0 failed with error -22", "nic-fault", "0000:01:00.0"),
        ("mlx5_core 0000:01:00.0: probe with driver mlx5_core failed with error -110", "nic-fault", ""),
        ("mlx5_core 0000:3b:00.0: temp_warn:166: High temperature on sensors", "nic-fault", "hot"),
        ("NVRM: knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's postRxDetLinkMask failed!",
         "gpu-xid", "NVLinks"),
        ("NVRM: GPU0 Check failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0xF)", "gpu-xid", "bus"),
        ("NVRM: GspRmAlloc failed: Reset required [NV_ERR_RESET_REQUIRED]", "gpu-xid", "reset"),
        ("pcieport 0000:16:01.0: AER: device recovery failed", "pcie-fatal", "0000:16:01.0"),
        ("[500.1] pcieport 0000:16:01.0: pciehp: Slot(1): Link Down", "pcie-fatal", "0000:16:01.0"),
        ("{1}[Hardware Error]: event severity: recoverable", "machine-check", "uncorrected"),
        ("[Hardware Error]: Deferred error, no action required.", "machine-check", "uncorrected"),
        ("nvidia 0000:65:00.0: Unable to change power state from D3cold to D0, device inaccessible",
         "pcie-fatal", "0000:65:00.0"),
        ("mce: Uncorrected hardware memory error in user-access at 3fba8d000", "machine-check", ""),
        ("blk_update_request: I/O error, dev nvme0n1, sector 12", "disk-fault", "nvme0n1"),
        ("EXT4-fs error (device nvme0n1p2): ext4_find_entry:1455: inode #2", "disk-fault", "nvme0n1p2"),
        ("XFS (md0): Metadata corruption detected at xfs_agi_verify", "disk-fault", "md0"),
        ("blk_update_request: I/O error, dev sr0, sector 0", None, ""),  # virtual media
        ("libceph: osd1 10.0.0.2:6801 socket closed (con state OPEN)", None, ""),  # it was idle
        ("libceph: osd1 10.0.0.2:6801 socket closed (con state V1_BANNER)", "server-hangs", "osd1"),
        ("lockd: server filer not responding, still trying", "server-hangs", "filer"),
        ("LustreError: 167-0: fs-MDT0000-mdc-ffff8800: This client was evicted by fs-MDT0000",
         "server-hangs", "fs-MDT0000"),
        (r"CIFS: VFS: \\filer has not responded in 180 seconds. Reconnecting...", "server-hangs", "filer"),
        ("INFO: task tokio worker:12 blocked for more than 122 seconds.", "task-hung", "tokio worker"),
        ("INFO: task cp:12 blocked in I/O wait for more than 122 seconds.", "task-hung", "cp"),
        ("INFO: rcu_sched self-detected stall on CPU", "task-hung", "processor"),
        ("Out of memory (oom_kill_allocating_task): Killed process 9 (cp)", "out-of-memory", "cp"),
    ],
)  # fmt: skip
def test_lines(line: str, id: str | None, part: str) -> None:
    found = kernel_findings(line)
    if id is None:
        assert found == []
    else:
        [(finding, evidence)] = found
        assert (finding.id, part in finding.message) == (id, True), finding.message
        assert evidence in line


@pytest.mark.parametrize(
    ("error", "action"),
    [
        # Lines of NVIDIA/NVSentinel and leptonai/gpud.
        ("145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000008 0x0)", "recovery"),
        ("145, pid=4, name=<unknown>, RLW_SRC_TRACK Fatal XC0 i1 Link 00 (0x00000001 0x00000010)",
         "reset"),
        ("149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 01 (0x00082226 0x00000001 0x0)", "cable"),
        # Sub-codes 4 and 33.
        ("149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 12 (0x004505c6 0x00000000 0x0)", "link"),
        ("149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 12 (0x021505c6 0x00000000 0x0)", "peer"),
        # The table does not have them: as the severity in the line says.
        ("149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 12 (0x03f505c6 0x00000000 0x0)", "link"),
        ("145, RLW_CTRL Nonfatal XC0 i0 Link -1 (0x1 0x2 0x0 0x0)", "support"),
    ],
)  # fmt: skip
def test_registers_of_nvlink_5_choose_the_advice(error: str, action: str) -> None:
    [(finding, _)] = kernel_findings(XID + error)
    assert finding.advice == catalog()["actions"][action]


def test_the_evidence_is_the_line_of_that_number_and_that_gpu() -> None:
    lines = [
        f"{XID}79, first",
        f"{XID}79, last",
        "NVRM: Xid (PCI:0000:43:00): 79, another GPU",
        f"{XID}48, another number",
        "NVRM: Xid (PCI:0000:43:00): 31, pid=4242, MMU Fault",
        "nvidia-nvswitch2: SXid (PCI:0000:09:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
        "nvidia-nvswitch2: SXid (PCI:0000:09:00.0): 20034, Severity 5 Engine instance 30",
    ]
    shown = {
        finding.message.split(",")[0]: line for finding, line in kernel_findings("\n".join(lines))
    }
    assert list(shown.values()) == [lines[1], lines[2], lines[3], lines[5]]
    assert "Xid 79 (GPU has fallen off the bus) 2 times on 0000:1b:00" in shown


def test_every_row_of_the_catalog_is_complete_and_every_finding_has_a_rule() -> None:
    known = catalog()
    rules = set(BY_AREA["logs of kernel and drivers"])
    assert {rule["finding"] for rule in known["kernel"]} <= rules
    for row in (*known["xids"].values(), *known["sxids"].values(), *known["kernel"]):
        assert row["action"] in known["actions"]
    assert {*known["actions"]} >= {
        act for unit in known["nvlink5"].values() for act in unit.values()
    }
    severities = {row["severity"] for row in (*known["xids"].values(), *known["sxids"].values())}
    assert severities == {"fail", "warn", "none", "line", "unknown"}
    rows = packaged_json("provision_runtime.checks", "kernel_events.json")
    assert {row["fault"] for row in rows["xids"].values()} == {"hardware", "driver", "program"}
    programs = [row["severity"] for row in rows["xids"].values() if row["fault"] == "program"]
    assert "fail" not in programs
    assert {row["source"] for row in rows["xids"].values()} <= set(rows["sources"])
