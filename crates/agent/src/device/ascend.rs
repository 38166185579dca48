//! Huawei Ascend NPUs, through `npu-smi`.
//!
//! The tool has no machine format for the list of devices, only a table for people, which differs between generations.
//! The parts that are alike in all of them are used: after the header, each chip has two rows of three cells. The first
//! begins with the card's number and the chip's name, the second with the chip's number on the card; the second's
//! middle cell is the bus address, and its last ends with the memory as `used / total` in megabytes.

mod gauge;

use std::fs;
use std::io::{self, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub(super) use gauge::Gauge;

use muster_model::node::{Device, Vendor};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Far beyond what it takes on a loaded machine with many cards. A driver that hangs must not keep the agent waiting.
const PATIENCE: Duration = Duration::from_secs(15);
/// The table of sixteen chips is a few kilobytes.
const LONGEST: u64 = 1 << 20;
/// Where the driver's own tool keeps the addresses by which chips of several machines reach each other.
const ADDRESSES: &str = "/etc/hccn.conf";

pub(super) fn discover() -> Vec<Device> {
    match ask(&["info"]) {
        Ok(Some(table)) => {
            let mut devices = parse(&table);
            address(&mut devices, &fs::read_to_string(ADDRESSES).unwrap_or_default());
            devices
        }
        Ok(None) => Vec::new(),
        Err(error) => {
            tracing::warn!(%error, "npu-smi is installed but does not work: this node has no Ascend devices");
            Vec::new()
        }
    }
}

/// What the tool prints; none if there is no such tool.
fn ask(arguments: &[&str]) -> io::Result<Option<String>> {
    let mut command = Command::new("npu-smi");
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let output = read_until(&mut child, Instant::now() + PATIENCE);
    if output.is_err() {
        // It may hang in the driver, where no signal reaches it. It is not waited for either way.
        let _ = child.kill();
        std::thread::spawn(move || child.wait());
        return output.map(Some);
    }
    match child.wait()? {
        status if status.success() => output.map(Some),
        status => Err(io::Error::other(format!("it ended with {status}"))),
    }
}

fn read_until(child: &mut Child, deadline: Instant) -> io::Result<String> {
    let mut bytes = Vec::new();
    let Some(stdout) = child.stdout.as_mut() else { return Ok(String::new()) };
    let mut buffer = [0; 4096];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).ok();
        if poll(&mut [PollFd::new(&*stdout, PollFlags::IN)], timeout.as_ref())? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match stdout.read(&mut buffer)? {
            0 => return Ok(String::from_utf8_lossy(&bytes).into_owned()),
            count if bytes.len() as u64 <= LONGEST => bytes.extend_from_slice(&buffer[..count]),
            _ => return Err(io::Error::other("it writes without end")),
        }
    }
}

/// The chips of a table, numbered in its order, which is that of `ASCEND_RT_VISIBLE_DEVICES`.
fn parse(table: &str) -> Vec<Device> {
    let pairs = (0..).zip(pairs(table));
    pairs.filter_map(|(index, [card, chip])| device(index, card, chip)).collect()
}

/// The two rows of each chip.
fn pairs(table: &str) -> Vec<[[&str; 3]; 2]> {
    // The list of processes that follows has rows of other shapes, and a header that begins it.
    let chips = table.lines().take_while(|line| !line.contains("Process id"));
    let rows: Vec<[&str; 3]> = chips.filter_map(cells).filter(|row| starts_with_number(row[0])).collect();
    rows.chunks_exact(2).map(|rows| [rows[0], rows[1]]).collect()
}

/// Give each chip the network address that the driver's configuration has for it: `address_0=192.168.100.101`.
fn address(devices: &mut [Device], configuration: &str) {
    for line in configuration.lines() {
        let Some((name, value)) = line.split_once('=') else { continue };
        let number = name.trim().strip_prefix("address_").and_then(|number| number.parse::<u32>().ok());
        if let Some(device) = devices.iter_mut().find(|device| Some(device.index) == number) {
            device.ip = value.trim().parse().ok();
        }
    }
}

fn cells(line: &str) -> Option<[&str; 3]> {
    let inside = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    let cells: Vec<&str> = inside.split('|').map(str::trim).collect();
    cells.try_into().ok()
}

fn starts_with_number(cell: &str) -> bool {
    cell.split_ascii_whitespace().next().is_some_and(|word| word.bytes().all(|byte| byte.is_ascii_digit()))
}

fn device(index: u32, card: [&str; 3], chip: [&str; 3]) -> Option<Device> {
    let mut card_words = card[0].split_ascii_whitespace();
    let (card_number, name) = (card_words.next()?, card_words.next()?);
    let chip_number = chip[0].split_ascii_whitespace().next()?;
    let total = chip[2].rsplit('/').next()?.trim();
    let megabytes: u64 = total.parse().ok()?;
    Some(Device {
        index,
        vendor: Vendor::Ascend,
        model: name.strip_prefix("Ascend").filter(|rest| !rest.is_empty()).unwrap_or(name).to_owned(),
        // The tool shows no identifier. Two chips of one card may share a bus address.
        uuid: format!("npu-{card_number}.{chip_number}-{}", chip[1]),
        memory_bytes: megabytes << 20,
        simulated: false,
        ip: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One chip a card: 910B.
    pub(super) const ONE_CHIP: &str = "\
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.rc2                 Version: 24.1.rc2                                             |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | OK            | 97.5        41                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3379 / 65536         |
+===========================+===============+====================================================+
| 1     910B3               | Warning       | 93.9        40                0    / 0             |
| 0                         | 0000:C2:00.0  | 12          0    / 0          61022/ 65536         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| No running processes found in NPU 0                                                            |
+===========================+===============+====================================================+
| 1       0                 | 632268        | python3                  | 57643                   |
+===========================+===============+====================================================+
";

    /// Two chips a card, with their numbers on the node: the later 910.
    pub(super) const TWO_CHIPS: &str = "\
+------------------------------------------------------------------------------------------------------------------+
| npu-smi 26.0.rc2                            Version: 26.0.rc2                                                    |
+---------------------------+---------------+----------------------------------------------------------------------+
| NPU   Name                | Health        | Power(W)             Temp(C)                 Hugepages-Usage(page)   |
| Chip  Phy-ID              | Bus-Id        | AICore(%)            Memory-Usage(MB)        HBM-Usage(MB)           |
+===========================+===============+======================================================================+
| 0     Ascend910           | OK            | 162.6                34                      0    / 0                |
| 0     0                   | 0000:9D:00.0  | 0                    0    / 0                3419 / 65536            |
+------------------------------------------------------------------------------------------------------------------+
| 0     Ascend910           | OK            | -                    34                      0    / 0                |
| 1     1                   | 0000:9F:00.0  | 0                    0    / 0                2874 / 65536            |
+===========================+===============+======================================================================+
";

    /// Cards for inference: memory that is not HBM, a shared bus address, numbers that do not begin with 0.
    pub(super) const INFERENCE: &str = "\
+--------------------------------------------------------------------------------------------------------+
| npu-smi 25.2.0                                   Version: 25.2.0                                       |
+-------------------------------+-----------------+------------------------------------------------------+
| NPU     Name                  | Health          | Power(W)     Temp(C)           Hugepages-Usage(page) |
| Chip    Device                | Bus-Id          | AICore(%)    Memory-Usage(MB)                        |
+===============================+=================+======================================================+
| 2       310P3                 | OK              | NA           45                0     / 0             |
| 0       0                     | 0000:01:00.0    | 0            1529 / 44280                            |
+-------------------------------+-----------------+------------------------------------------------------+
| 2       310P3                 | OK              | NA           43                0     / 0             |
| 1       1                     | 0000:01:00.0    | 0            1412 / 43693                            |
+===============================+=================+======================================================+
+-------------------------------+-----------------+------------------------------------------------------+
| NPU     Chip                  | Process id      | Process name             | Process memory(MB)        |
+===============================+=================+======================================================+
| No running processes found in NPU 2                                                                    |
+===============================+=================+======================================================+
";

    fn seen(table: &str) -> Vec<(u32, String, u64)> {
        parse(table)
            .into_iter()
            .map(|device| (device.index, device.model, device.memory_bytes >> 20))
            .collect()
    }

    #[test]
    fn chips_of_every_generation_are_found() {
        assert_eq!(seen(ONE_CHIP), [(0, "910B3".into(), 65536), (1, "910B3".into(), 65536)]);
        assert_eq!(seen(TWO_CHIPS), [(0, "910".into(), 65536), (1, "910".into(), 65536)]);
        assert_eq!(seen(INFERENCE), [(0, "310P3".into(), 44280), (1, "310P3".into(), 43693)]);
    }

    #[test]
    fn chips_have_the_addresses_of_the_drivers_configuration() {
        let mut devices = parse(ONE_CHIP);
        let configuration = "address_1 = 192.168.100.102\nnetmask_1=255.255.255.0\naddress_7=1.2.3.4\nsend_arp_status_0=1\naddress_0=not one\n";
        address(&mut devices, configuration);
        let ips: Vec<_> = devices.iter().map(|device| device.ip).collect();
        assert_eq!(ips, [None, Some([192, 168, 100, 102].into())]);
    }

    #[test]
    fn chips_that_share_a_bus_address_are_told_apart() {
        let uuids: Vec<_> = parse(INFERENCE).into_iter().map(|device| device.uuid).collect();
        assert_eq!(uuids, ["npu-2.0-0000:01:00.0", "npu-2.1-0000:01:00.0"]);
    }

    #[test]
    fn what_is_not_such_a_table_has_no_devices() {
        for text in [
            "",
            "npu-smi: command failed",
            "| 0 | 1 |",
            "| 0 910B3 | OK | 1 |\n",
            "| a | b | c |\n| 0 | x | 1 / y |",
        ] {
            assert_eq!(parse(text), [], "{text}");
        }
    }
}
