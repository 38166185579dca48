//! The cluster's partitions and their limits, as `scontrol` lists them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use muster_model::reason::TimeLimitSource;
use tokio::sync::Mutex;

use super::excerpt::{SENTENCE, excerpt};
use super::job::limit;
use crate::{Error, PlaceLimits, TimeLimit};

/// For how long the limits of partitions are taken to be as they were: administrators change them a few times a year.
const LIMITS_AGE: Duration = Duration::from_secs(60);

/// A large site has dozens.
const MOST_PARTITIONS: usize = 2000;

/// The limits of partitions as of the last question, and its time.
#[derive(Debug, Default)]
pub(super) struct KnownPartitions(Mutex<Option<(Instant, Arc<Vec<PlaceLimits>>)>>);

impl KnownPartitions {
    /// The limits as they were at most a minute ago. They are asked for only where they are older.
    pub(super) async fn get(
        &self,
        asked: impl Future<Output = Result<String, Error>>,
    ) -> Result<Arc<Vec<PlaceLimits>>, Error> {
        let mut known = self.0.lock().await;
        if let Some((_, partitions)) = known.as_ref().filter(|(at, _)| at.elapsed() < LIMITS_AGE) {
            return Ok(Arc::clone(partitions));
        }
        let partitions = Arc::new(read(&asked.await?));
        *known = Some((Instant::now(), Arc::clone(&partitions)));
        Ok(partitions)
    }
}

/// One line for each partition: one call of the controller.
pub(super) fn scontrol() -> Vec<String> {
    ["scontrol", "--all", "--oneliner", "show", "partition"].map(String::from).to_vec()
}

/// The partitions, in Slurm's order.
pub(super) fn read(output: &str) -> Vec<PlaceLimits> {
    output.lines().filter_map(read_line).take(MOST_PARTITIONS).collect()
}

/// `PartitionName=gpu … Default=NO … MaxTime=02:00:00 …`: no value has a blank in it.
fn read_line(line: &str) -> Option<PlaceLimits> {
    let mut partition = PlaceLimits::default();
    for (key, value) in line.split_whitespace().filter_map(|field| field.split_once('=')) {
        match key {
            "PartitionName" => partition.place = excerpt(value, SENTENCE),
            "Default" => partition.is_default = value == "YES",
            "MaxTime" => partition.max_time = limit(value),
            "DefaultTime" => partition.default_time = limit(value),
            "MaxNodes" => partition.max_nodes = value.parse().ok(),
            _ => {}
        }
    }
    (!partition.place.is_empty()).then_some(partition)
}

/// The partitions that a target's place names: `gpu`, `gpu,long`, or none for the default one.
pub(super) fn named<'a>(partitions: &'a [PlaceLimits], place: &str) -> Vec<&'a PlaceLimits> {
    let is_named = |partition: &&PlaceLimits| match place {
        "" => partition.is_default,
        place => place.split(',').any(|name| name == partition.place),
    };
    partitions.iter().filter(is_named).collect()
}

/// The longest time limit that a place gives a job. Slurm takes a job that one of several partitions takes. `None`: any, or
/// it is not known.
pub(super) fn max_time(partitions: &[PlaceLimits], place: &str) -> Option<Duration> {
    let limits: Option<Vec<Duration>> =
        named(partitions, place).into_iter().map(|partition| partition.max_time).collect();
    limits?.into_iter().max()
}

/// A time limit that Slurm gave a job without one, with who set it: its partition, where the limit is that of the partition.
pub(super) fn with_source(limit: TimeLimit, partitions: &[PlaceLimits], place: &str) -> TimeLimit {
    let partitions = named(partitions, place);
    let is =
        |of: fn(&PlaceLimits) -> Option<Duration>| partitions.iter().any(|it| of(it) == Some(limit.span));
    let set_by = match (is(|it| it.default_time), is(|it| it.max_time)) {
        (true, _) => TimeLimitSource::PartitionDefault,
        (false, true) => TimeLimitSource::PartitionLimit,
        (false, false) => limit.set_by,
    };
    TimeLimit { set_by, ..limit }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Slurm 22.05 has said it.
    const SAID: &str = "\
PartitionName=main AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=YES QoS=N/A DefaultTime=NONE \
DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=0 Nodes=n[1-4] State=UP
PartitionName=gpu AllowGroups=ALL Default=NO QoS=N/A DefaultTime=00:30:00 Hidden=NO MaxNodes=2 MaxTime=02:00:00 Nodes=n[1-2]
PartitionName=long Default=NO DefaultTime=1-00:00:00 MaxNodes=UNLIMITED MaxTime=7-12:00:00
";
    const MINUTE: u64 = 60;

    #[test]
    fn limits_of_partitions_are_read() {
        let partitions = read(SAID);
        let minutes = |span: Option<Duration>| span.map(|span| span.as_secs() / MINUTE);
        let limits: Vec<_> = partitions
            .iter()
            .map(|it| (it.place.as_str(), minutes(it.max_time), minutes(it.default_time), it.max_nodes))
            .collect();
        let expected = [
            ("main", None, None, None),
            ("gpu", Some(120), Some(30), Some(2)),
            ("long", Some((7 * 24 + 12) * 60), Some(24 * 60), None),
        ];
        assert_eq!(limits, expected);
        assert!(partitions[0].is_default && !partitions[1].is_default);
        let many: String = (0..5000).map(|number| format!("PartitionName=p{number}\n")).collect();
        assert_eq!(read(&many).len(), MOST_PARTITIONS);
        assert_eq!(read("slurm_load_partitions error: Unable to contact slurm controller\n\n"), []);
    }

    #[test]
    fn a_place_allows_what_the_most_generous_of_its_partitions_allows() {
        let partitions = read(SAID);
        let hours = |place| max_time(&partitions, place).map(|span| span.as_secs() / 3600);
        assert_eq!(hours("gpu"), Some(2));
        assert_eq!(hours("gpu,long"), Some(180));
        assert_eq!(hours("gpu,main"), None, "one of them has no limit");
        assert_eq!((hours(""), hours("elsewhere")), (None, None));
        assert_eq!(named(&partitions, "")[0].place, "main");
    }

    #[test]
    fn a_time_limit_is_the_partitions_if_it_is_as_long() {
        let partitions = read(SAID);
        let source = |minutes: u64, place| {
            let span = Duration::from_secs(minutes * MINUTE);
            with_source(TimeLimit { span, set_by: TimeLimitSource::Cluster }, &partitions, place).set_by
        };
        assert_eq!(source(30, "gpu"), TimeLimitSource::PartitionDefault);
        assert_eq!(source(120, "gpu"), TimeLimitSource::PartitionLimit);
        assert_eq!(source(31, "gpu"), TimeLimitSource::Cluster, "an operator has changed it");
        assert_eq!(source(30, "main"), TimeLimitSource::Cluster);
    }
}
