//! What can be read from Ascend NPUs while they work.
//!
//! The tool takes a second or more to answer for a whole machine, so nobody waits for it: it runs beside, not too often,
//! and what it said last is what is known.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use muster_model::metrics::DeviceUse;

use super::{ask, pairs};

/// How often the tool is asked, at most. It costs the machine more than all else that is measured there.
const PAUSE: Duration = Duration::from_secs(15);
/// Errors of memory are rare, and asking for them takes one run of the tool for each chip.
const ECC_PAUSE: Duration = Duration::from_secs(10 * 60);
/// After so long, what the tool said says nothing about now.
const STALE: Duration = Duration::from_secs(2 * 60);

/// The tool's last words.
#[derive(Debug, Default)]
pub(in super::super) struct Gauge {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    is_asking: bool,
    asked_at: Option<Instant>,
    ecc_asked_at: Option<Instant>,
    /// Corrected and uncorrected errors of each chip, by its number in the table.
    ecc: HashMap<u32, (u64, u64)>,
    heard: Option<(Instant, Vec<DeviceUse>)>,
}

impl Gauge {
    /// How the chips are, numbered in the table's order, as far as that is known now.
    pub(in super::super) fn read(&self) -> Vec<DeviceUse> {
        let mut state = lock(&self.state);
        if !state.is_asking && is_due(state.asked_at, PAUSE) {
            state.is_asking = true;
            state.asked_at = Some(Instant::now());
            let asks_ecc = is_due(state.ecc_asked_at, ECC_PAUSE);
            let shared = Arc::clone(&self.state);
            let started = std::thread::Builder::new()
                .name("npu-smi".into())
                .stack_size(256 << 10)
                .spawn(move || listen(&shared, asks_ecc));
            // Without a thread now there may be one the next time.
            state.is_asking = started.is_ok();
        }
        match &state.heard {
            Some((at, chips)) if at.elapsed() < STALE => chips.clone(),
            _ => Vec::new(),
        }
    }
}

fn is_due(last: Option<Instant>, pause: Duration) -> bool {
    last.is_none_or(|last| last.elapsed() >= pause)
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // Whatever was half done by a thread that broke is asked for again.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn listen(shared: &Mutex<State>, asks_ecc: bool) {
    let table = ask(&["info"]).ok().flatten();
    let ecc = table.as_deref().filter(|_| asks_ecc).map(ask_ecc);
    let mut state = lock(shared);
    if let Some(ecc) = ecc {
        state.ecc = ecc;
        state.ecc_asked_at = Some(Instant::now());
    }
    if let Some(table) = table {
        let mut chips = parse(&table);
        for chip in &mut chips {
            (chip.ecc_corrected, chip.ecc_uncorrected) = state.ecc.get(&chip.index).copied().unzip();
        }
        state.heard = Some((Instant::now(), chips));
    }
    state.is_asking = false;
}

/// Every chip of a table, in its order.
fn parse(table: &str) -> Vec<DeviceUse> {
    (0..).zip(pairs(table)).map(|(index, [card, chip])| chip_use(index, card, chip)).collect()
}

fn chip_use(index: u32, card: [&str; 3], chip: [&str; 3]) -> DeviceUse {
    let mut of_card = card[2].split_ascii_whitespace();
    let power = of_card.next().and_then(|text| text.parse::<f64>().ok());
    let memory = chip[2].rsplit_once('/').map(|(before, total)| {
        let used = before.split_ascii_whitespace().next_back().and_then(|text| text.parse::<u64>().ok());
        (used, total.trim().parse::<u64>().ok())
    });
    let (used, total) = memory.unwrap_or_default();
    DeviceUse {
        index,
        utilisation_percent: chip[2].split_ascii_whitespace().next().and_then(|text| text.parse().ok()),
        memory_bytes: used.map(|megabytes| megabytes << 20),
        memory_total_bytes: total.map(|megabytes| megabytes << 20),
        // Of a card with two chips, the first has it for both.
        power_watts: power.map(|watts| watts.round() as u32),
        temperature_celsius: of_card.next().and_then(|text| text.parse().ok()),
        ecc_corrected: None,
        ecc_uncorrected: None,
    }
}

fn ask_ecc(table: &str) -> HashMap<u32, (u64, u64)> {
    let first = |cell: &str| cell.split_ascii_whitespace().next().unwrap_or_default().to_owned();
    let chips = (0..).zip(pairs(table));
    chips
        .filter_map(|(index, [card, chip])| {
            let (card, chip) = (first(card[0]), first(chip[0]));
            let text = ask(&["info", "-t", "ecc", "-i", &card, "-c", &chip]).ok()??;
            Some((index, errors(&text)?))
        })
        .collect()
}

/// Errors since the driver was loaded, of all kinds of memory together; none if the text is about something else.
fn errors(text: &str) -> Option<(u64, u64)> {
    let sum = |kind: &str| {
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        let counts = lines.filter(|(name, _)| name.trim().ends_with(kind));
        counts.filter_map(|(_, count)| count.trim().parse::<u64>().ok()).reduce(|sum, count| sum + count)
    };
    Some((sum("Single Bit Error Count")?, sum("Double Bit Error Count")?))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{INFERENCE, ONE_CHIP, TWO_CHIPS};
    use super::*;

    fn chip(
        index: u32,
        percent: u32,
        megabytes: [u64; 2],
        power: Option<u32>,
        temperature: u32,
    ) -> DeviceUse {
        DeviceUse {
            index,
            utilisation_percent: Some(percent),
            memory_bytes: Some(megabytes[0] << 20),
            memory_total_bytes: Some(megabytes[1] << 20),
            power_watts: power,
            temperature_celsius: Some(temperature),
            ecc_corrected: None,
            ecc_uncorrected: None,
        }
    }

    #[test]
    fn the_table_tells_how_every_chip_is() {
        let one = [chip(0, 0, [3379, 65536], Some(98), 41), chip(1, 12, [61022, 65536], Some(94), 40)];
        assert_eq!(parse(ONE_CHIP), one);
        let two = [chip(0, 0, [3419, 65536], Some(163), 34), chip(1, 0, [2874, 65536], None, 34)];
        assert_eq!(parse(TWO_CHIPS), two);
        let inference = [chip(0, 0, [1529, 44280], None, 45), chip(1, 0, [1412, 43693], None, 43)];
        assert_eq!(parse(INFERENCE), inference);
        assert_eq!(parse("nothing of the kind"), []);
    }

    #[test]
    fn errors_of_all_memories_count_and_those_of_former_lives_do_not() {
        let text = "\
\tNPU ID                         : 0
\tChip Count                     : 1

\tDDR Single Bit Error Count     : 1
\tDDR Double Bit Error Count     : 0
\tDDR Single Bit Aggregate Total Err Cnt  : 9
\tHBM Single Bit Error Count     : 2
\tHBM Double Bit Error Count     : 1
\tHBM Double Bit Aggregate Total Err Cnt  : 9
";
        assert_eq!(errors(text), Some((3, 1)));
        assert_eq!(errors("This device does not support querying ecc."), None);
    }
}
