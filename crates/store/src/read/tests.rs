//! Answers are right, use an index, and keep nobody waiting.

use std::collections::BTreeSet;
use std::sync::mpsc;
use std::thread;

use muster_model::spec::Kind;
use muster_model::{Event, JobId, State};
use rusqlite::params_from_iter;
use serde_json::json;

use super::list::{JobFilter, query};
use super::resolve::Resolution;
use super::sight::Sight;
use crate::change::{Change, NewEvent, NewJob};
use crate::error::Class;
use crate::fixture::{Fixture, admit, at, change, event, finished, new_job};

fn named(number: u64, name: &str) -> NewJob {
    NewJob { name: name.into(), ..new_job(number) }
}

/// `count` jobs in one batch, most of them over, some waiting.
fn crowd(store: &mut Fixture, count: u64) {
    let job = |number| if number % 100 == 0 { new_job(number) } else { finished(number) };
    let batch: Vec<Change> = (0..count).map(|number| Change::NewJob(Box::new(job(number)))).collect();
    store.writer.commit(&batch).unwrap();
}

fn names(store: &Fixture, filter: &JobFilter) -> Vec<String> {
    store.readers.jobs(filter, 100).unwrap().into_iter().map(|row| row.name).collect()
}

#[test]
fn a_list_shows_what_was_stored() {
    let mut store = Fixture::new();
    let mut new = new_job(1);
    new.spec.resources.gpus = Some("H100:8".parse().unwrap());
    let mut job = store.add(new.clone()).job;
    store.apply(&mut job, admit(2), at(10));
    store.apply(&mut job, Event::Stop { grace: None }, at(20));

    let rows = store.readers.jobs(&JobFilter::default(), 10).unwrap();
    let [row] = rows.as_slice() else { panic!("one job, not {rows:?}") };
    assert_eq!((row.seq, &row.id, row.state, row.attempt), (1, &job.id, State::Stopping, 1));
    assert_eq!((row.name.as_str(), row.owner.as_str(), row.workspace.as_str()), ("train", "ada", "default"));
    assert_eq!(
        (row.nodes, row.gpus.as_deref(), row.command.as_str()),
        (2, Some("H100:8"), "python train.py")
    );
    assert_eq!((row.on.as_str(), row.kind, row.exit_code), ("local", new.spec.kind, None));
    assert_eq!((row.submitted_at, row.started_at, row.ended_at), (new.submitted_at, None, None));
    assert!(store.readers.has_jobs_of("ada").unwrap() && !store.readers.has_jobs_of("eve").unwrap());
}

#[test]
fn a_list_is_newest_first_and_its_pages_meet_without_a_gap() {
    let mut store = Fixture::new();
    crowd(&mut store, 250);
    for states in [vec![], vec![State::Queued], vec![State::Queued, State::Succeeded, State::Failed]] {
        let mut filter = JobFilter { states, ..JobFilter::default() };
        let expected = if filter.states == [State::Queued] { 3 } else { 250 };
        let mut seen = Vec::new();
        loop {
            let page = store.readers.jobs(&filter, 100).unwrap();
            seen.extend(page.iter().map(|row| row.seq));
            match page.last() {
                Some(last) => filter.before_seq = Some(last.seq),
                None => break,
            }
        }
        assert!(seen.is_sorted_by(|a, b| a > b));
        assert_eq!(seen.len(), expected);
    }
}

#[test]
fn machines_and_labels_can_be_asked_for_with_or_without_states() {
    let mut store = Fixture::new();
    let mut machine = named(1, "v100");
    machine.spec.kind = Kind::Machine;
    machine.spec.labels =
        [("project".to_owned(), "bert".to_owned()), ("a.b/c".to_owned(), "1".to_owned())].into();
    let mut labelled = named(2, "train");
    labelled.spec.labels = [("project".to_owned(), "bert".to_owned())].into();
    for new in [machine, labelled, named(3, "plain")] {
        store.add(new);
    }
    let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    for states in [vec![], vec![State::Queued, State::Running]] {
        let all = JobFilter { states, ..JobFilter::default() };
        assert_eq!(names(&store, &JobFilter { kind: Some(Kind::Machine), ..all.clone() }), ["v100"]);
        assert_eq!(
            names(&store, &JobFilter { labels: vec![label("project", "bert")], ..all.clone() }),
            ["train", "v100"]
        );
        let both = vec![label("project", "bert"), label("a.b/c", "1")];
        assert_eq!(names(&store, &JobFilter { labels: both, ..all.clone() }), ["v100"]);
        assert!(names(&store, &JobFilter { labels: vec![label("project", "x")], ..all.clone() }).is_empty());
        assert!(names(&store, &JobFilter { labels: vec![label("pro", "bert")], ..all }).is_empty());
    }
    let rows = store.readers.jobs(&JobFilter::default(), 10).unwrap();
    assert_eq!(rows.iter().map(|row| row.labels.len()).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn a_job_is_renamed_only_as_it_was_known() {
    let mut store = Fixture::new();
    let job = store.add(named(1, "old")).job;
    let rename =
        |generation, name: &str| Change::Rename { job: job.id.clone(), generation, name: name.into() };
    store.writer.commit(&[rename(job.generation, "new")]).unwrap();
    assert!(store.writer.commit(&[rename(job.generation + 1, "newer")]).is_err());
    assert_eq!(names(&store, &JobFilter::default()), ["new"]);
}

fn shown(new: NewJob, display_name: &str) -> NewJob {
    let mut new = new;
    new.spec.display_name = Some(display_name.into());
    new
}

#[test]
fn a_job_is_found_by_its_display_name_when_no_other_can_be_meant() {
    let mut store = Fixture::new();
    let old = store.add(shown(finished(1), "训练任务")).job.id;
    let row = &store.readers.jobs(&JobFilter::default(), 10).unwrap()[0];
    assert_eq!((row.name.as_str(), row.display_name.as_deref()), ("train", Some("训练任务")));
    let find = |store: &Fixture, text: &str| store.readers.resolve(text, &Sight::All, None).unwrap();
    assert_eq!(find(&store, "训练任务"), Resolution::One(old.clone()));
    for other in ["训练", "训练任务 ", "", "训练任务%", &"训".repeat(10_000)] {
        assert_eq!(find(&store, other), Resolution::None, "{other}");
    }
    // One that is not over is meant; of several that are over, none is.
    let running = store.add(shown(new_job(2), "训练任务")).job.id;
    assert_eq!(find(&store, "训练任务"), Resolution::One(running.clone()));
    let newer = store.add(shown(new_job(3), "训练任务")).job.id;
    let both = vec![(newer, "train".to_owned()), (running, "train".to_owned())];
    assert_eq!(find(&store, "训练任务"), Resolution::Many(both));
    store.add(shown(finished(4), "größe"));
    assert!(matches!(find(&store, "gro\u{308}ße"), Resolution::One(_)), "however it is typed");
    store.add(shown(finished(5), "größe"));
    assert!(matches!(find(&store, "größe"), Resolution::Many(all) if all.len() == 2));
    // An identifier is meant before a display name.
    let other = store.add(shown(new_job(6), "bert")).job.id;
    assert_eq!(find(&store, "bert"), Resolution::One(other));
    let named = store.add(named(7, "bert")).job.id;
    assert_eq!(find(&store, "bert"), Resolution::One(named));
}

#[test]
fn display_names_of_others_are_found_after_ones_own_and_only_in_sight() {
    let mut store = Fixture::new();
    let of = |number, owner: &str, workspace: &str| NewJob {
        owner: owner.into(),
        workspace: workspace.into(),
        ..shown(new_job(number), "训练")
    };
    let own = store.add(of(1, "ada", "nlp")).job.id;
    let other = store.add(of(2, "bob", "nlp")).job.id;
    let hidden = store.add(of(3, "eve", "cv")).job.id;
    let nlp = Sight::Workspaces(["nlp".to_owned()].into());
    let find = |sight: &Sight, who| store.readers.resolve("训练", sight, Some(who)).unwrap();
    assert_eq!(find(&nlp, "ada"), Resolution::One(own));
    assert_eq!(find(&nlp, "bob"), Resolution::One(other));
    assert!(matches!(find(&nlp, "eve"), Resolution::Many(all) if all.len() == 2));
    assert_eq!(find(&Sight::Workspaces(["cv".to_owned()].into()), "ada"), Resolution::One(hidden));
    assert_eq!(find(&Sight::Workspaces(BTreeSet::new()), "ada"), Resolution::None);
}

#[test]
fn a_list_can_be_narrowed() {
    let mut store = Fixture::new();
    store.add(named(1, "a"));
    store.add(NewJob { owner: "bob".into(), ..named(2, "b") });
    store.add(NewJob { workspace: "nlp".into(), ..named(3, "c") });
    store.add(NewJob { name: "a".into(), ..finished(4) });
    let all = JobFilter::default();
    assert_eq!(names(&store, &all), ["a", "c", "b", "a"]);
    assert_eq!(names(&store, &JobFilter { owner: Some("bob".into()), ..all.clone() }), ["b"]);
    assert_eq!(names(&store, &JobFilter { workspace: Some("nlp".into()), ..all.clone() }), ["c"]);
    assert_eq!(names(&store, &JobFilter { states: vec![State::Queued], ..all.clone() }), ["c", "b", "a"]);
    let waiting_a = JobFilter { name: Some("a".into()), states: vec![State::Queued], ..all.clone() };
    assert_eq!(names(&store, &waiting_a), ["a"]);
    let bobs_over = JobFilter { owner: Some("bob".into()), states: vec![State::Succeeded], ..all };
    assert_eq!(names(&store, &bobs_over), [""; 0]);
}

/// How SQLite would answer a query, a line for each step.
fn plan(store: &Fixture, sql: &str, parameters: Vec<rusqlite::types::Value>) -> String {
    let reader = store.readers.reader().unwrap();
    let mut statement = reader.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
    let steps = statement.query_map(params_from_iter(parameters), |row| row.get::<_, String>(3)).unwrap();
    steps.map(Result::unwrap).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_last_job_is_ones_own_and_so_is_a_name_that_one_has() {
    let mut store = Fixture::new();
    let jobs = [
        (1, "train", "ada"),
        (2, "train", "bob"),
        (3, "eval", "bob"),
        (4, "tune", "ada"),
        (5, "eval", "eve"),
    ];
    let ids = jobs
        .map(|(number, name, owner)| store.add(NewJob { owner: owner.into(), ..named(number, name) }).job.id);
    let resolve =
        |selector: &str, own: &str| store.readers.resolve(selector, &Sight::All, Some(own)).unwrap();
    let one = |number: usize| Resolution::One(ids[number - 1].clone());
    assert_eq!([resolve("last", "ada"), resolve("last", "bob")], [one(4), one(3)]);
    assert_eq!(resolve("last", "nobody"), Resolution::None);
    assert_eq!(
        [resolve("train", "ada"), resolve("train", "bob"), resolve("eval", "bob")],
        [one(1), one(2), one(3)]
    );
    assert_eq!(resolve("eval", "ada"), one(5), "whoever has none of it means the newest");
    let own = Sight::Workspaces(["elsewhere".to_owned()].into());
    assert_eq!(store.readers.resolve("last", &own, Some("ada")).unwrap(), Resolution::None);
}

#[test]
fn what_is_out_of_sight_is_not_there() {
    let mut store = Fixture::new();
    let in_workspace =
        |number, name: &str, workspace: &str| NewJob { workspace: workspace.into(), ..named(number, name) };
    let jobs =
        [(1, "train", "nlp"), (2, "train", "cv"), (3, "eval", "ops"), (4, "eval", "nlp"), (5, "tune", "cv")];
    let ids: Vec<JobId> =
        jobs.map(|(number, name, of)| store.add(in_workspace(number, name, of)).job.id).to_vec();
    let of = |names: &[&str]| Sight::Workspaces(names.iter().map(|name| (*name).to_owned()).collect());
    let listed = |sight: &Sight, states: &[State]| {
        let filter = JobFilter { sight: sight.clone(), states: states.to_vec(), ..JobFilter::default() };
        let rows = store.readers.jobs(&filter, 3).unwrap();
        rows.iter().map(|row| ids.iter().position(|id| *id == row.id).unwrap() + 1).collect::<Vec<_>>()
    };
    for (names, seen) in [
        (&["nlp"][..], &[4, 1][..]),
        (&["cv", "nlp"], &[5, 4, 2]),
        (&["ops"], &[3]),
        (&[], &[]),
        (&["none"], &[]),
    ] {
        assert_eq!(listed(&of(names), &[]), seen, "{names:?}");
        assert_eq!(listed(&of(names), &[State::Queued, State::Failed]), seen, "{names:?}");
    }
    let many: Vec<String> = (0..300).map(|number| format!("w{number}")).chain(["ops".to_owned()]).collect();
    assert_eq!(listed(&Sight::Workspaces(many.into_iter().collect()), &[]), [3]);

    let resolve = |selector: &str, names: &[&str]| store.readers.resolve(selector, &of(names), None).unwrap();
    assert_eq!(resolve("last", &["nlp"]), Resolution::One(ids[3].clone()));
    assert_eq!(resolve("last", &["none"]), Resolution::None);
    assert_eq!(resolve("train", &["nlp"]), Resolution::One(ids[0].clone()));
    assert_eq!(resolve("tune", &["nlp"]), Resolution::None);
    for selector in [ids[1].as_str(), "2"] {
        assert_eq!(resolve(selector, &["nlp"]), Resolution::None);
        assert_eq!(resolve(selector, &["cv"]), Resolution::One(ids[1].clone()));
    }

    let event = |job: &JobId| {
        let (job, kind) = (Some(job.clone()), "submitted".into());
        Change::Event(NewEvent { job, attempt: None, at: at(1), kind, body: json!({}) })
    };
    store.writer.commit(&ids.iter().map(event).collect::<Vec<_>>()).unwrap();
    let events = |names: &[&str], after, limit| {
        let (rows, read_up_to) = store.readers.events_in(&of(names), after, limit).unwrap();
        (rows.into_iter().filter_map(|row| row.job).collect::<Vec<_>>(), read_up_to)
    };
    assert_eq!(events(&["cv"], 0, 10), (vec![ids[1].clone(), ids[4].clone()], 5));
    assert_eq!(events(&["cv"], 0, 1), (vec![ids[1].clone()], 2));
    assert_eq!(events(&["none"], 0, 10), (vec![], 5));
}

#[test]
fn lists_of_many_jobs_use_an_index() {
    let mut store = Fixture::new();
    crowd(&mut store, 10_000);
    let all = JobFilter::default();
    for (filter, index, may_sort) in [
        (all.clone(), "SEARCH job USING INTEGER PRIMARY KEY (rowid<?)", false),
        (
            JobFilter { owner: Some("ada".into()), ..all.clone() },
            "USING INDEX job_owner (owner=? AND seq<?)",
            false,
        ),
        (
            JobFilter { name: Some("x".into()), ..all.clone() },
            "USING INDEX job_name (name=? AND seq<?)",
            false,
        ),
        (
            JobFilter { name: Some("x".into()), states: vec![State::Running], ..all.clone() },
            "USING INDEX job_name (name=? AND seq<?)",
            false,
        ),
        (
            JobFilter { sight: Sight::Workspaces(["a", "b"].map(String::from).into()), ..all.clone() },
            "USING COVERING INDEX job_workspace (workspace=? AND seq<?)",
            true,
        ),
        (
            JobFilter { states: vec![State::Running, State::Failed], ..all },
            "USING COVERING INDEX job_state (state=? AND seq<?)",
            true,
        ),
    ] {
        let (sql, parameters) = query(&filter, 100);
        let plan = plan(&store, &sql, parameters);
        assert!(plan.contains(index), "{filter:?}\n{plan}");
        assert!(!plan.contains("SCAN job"), "{filter:?}\n{plan}");
        assert!(may_sort || !plan.contains("TEMP B-TREE"), "{filter:?}\n{plan}");
    }
}

#[test]
fn counts_are_by_state() {
    let mut store = Fixture::new();
    crowd(&mut store, 250);
    let mut counts = store.readers.counts_by_state().unwrap();
    counts.sort_by_key(|(_, count)| *count);
    assert_eq!(counts, [(State::Queued, 3), (State::Succeeded, 247)]);
}

#[test]
fn only_unfinished_jobs_are_loaded_in_order_and_share_their_spec() {
    let mut store = Fixture::new();
    crowd(&mut store, 250);
    let jobs = store.readers.load_unfinished().unwrap();
    assert_eq!(jobs.iter().map(|row| row.seq).collect::<Vec<_>>(), [1, 101, 201]);
    assert!(std::sync::Arc::ptr_eq(&jobs[0].spec, &jobs[2].spec));
}

#[test]
fn a_selector_finds_the_job_a_person_means() {
    let mut store = Fixture::new();
    let resolve =
        |store: &Fixture, selector: &str| store.readers.resolve(selector, &Sight::All, None).unwrap();
    for nothing in ["last", "train", "job_0"] {
        assert_eq!(resolve(&store, nothing), Resolution::None);
    }
    // The first letter of an id is the lowest five bits of its number: these begin with 1, 2 and 2.
    let (one, two, two_more) =
        (JobId::from_random(1), JobId::from_random(2), JobId::from_random(2 + (1 << 5)));
    store.add(named(1, "train"));
    store.add(NewJob { name: "train".into(), ..finished(2) });
    store.add(NewJob { name: "eval".into(), ..finished(2 + (1 << 5)) });

    assert_eq!(resolve(&store, "last"), Resolution::One(two_more.clone()));
    assert_eq!(resolve(&store, one.as_str()), Resolution::One(one.clone()));
    assert_eq!(resolve(&store, "job_1"), Resolution::One(one.clone()));
    assert_eq!(resolve(&store, "1"), Resolution::One(one.clone()));
    assert_eq!(resolve(&store, "21"), Resolution::One(two_more.clone()));
    let mut both = vec![(two.clone(), "train".to_owned()), (two_more.clone(), "eval".to_owned())];
    both.sort();
    assert_eq!(resolve(&store, "job_2"), Resolution::Many(both));
    assert_eq!(resolve(&store, "train"), Resolution::One(one.clone()), "not over, though an older one");
    assert_eq!(resolve(&store, "eval"), Resolution::One(two_more));
    for nothing in ["", "job_", "job_z", "job_%", "2'", "Train", "job_10000000000"] {
        assert_eq!(resolve(&store, nothing), Resolution::None, "{nothing}");
    }

    store.add(NewJob { name: "2".into(), ..finished(3) });
    assert_eq!(
        resolve(&store, "2"),
        Resolution::One(JobId::from_random(3)),
        "a name before a beginning of an id"
    );
    store.writer.commit(&[Change::RemoveJob { job: one, at: at(30) }]).unwrap();
    assert_eq!(resolve(&store, "train"), Resolution::One(two), "all of that name are over: the newest");
}

#[test]
fn events_come_in_order_and_page_by_page() {
    let mut store = Fixture::new();
    let (a, b) = (store.add(new_job(1)).job.id, store.add(new_job(2)).job.id);
    let batch = [event(Some(&a), "submitted"), event(Some(&b), "submitted"), event(None, "server_started")];
    store.writer.commit(&batch).unwrap();
    let committed = store.writer.commit(&[event(Some(&a), "starting")]).unwrap();
    assert_eq!(committed.last_event(), Some(4));

    let seqs = |job, after, limit| {
        let events = store.readers.events(job, after, limit).unwrap();
        events.into_iter().map(|event| event.seq).collect::<Vec<_>>()
    };
    assert_eq!(seqs(Some(&a), 0, 10), [1, 4]);
    assert_eq!(seqs(Some(&a), 1, 10), [4]);
    assert_eq!(seqs(None, 0, 2), [1, 2]);
    assert_eq!(seqs(None, 2, 10), [3, 4]);
    assert_eq!(store.readers.largest_event_seq().unwrap(), 4);
    let newest = &store.readers.events(Some(&a), 1, 1).unwrap()[0];
    assert_eq!((newest.kind.as_str(), &newest.body["kind"]), ("starting", &"starting".into()));
    let sql = "SELECT seq FROM event WHERE seq > 1 AND job = 'x' ORDER BY seq LIMIT 5";
    assert!(plan(&store, sql, vec![]).contains("USING COVERING INDEX event_job (job=? AND seq>?)"));
}

#[test]
fn an_open_reader_keeps_its_snapshot_and_never_blocks_the_writer() {
    let mut store = Fixture::new();
    let mut job = store.add(new_job(1)).job;
    let readers = store.readers.clone();
    let reader = readers.reader().unwrap();
    let count = || reader.query_row("SELECT count(*) FROM task", [], |row| row.get::<_, i64>(0)).unwrap();
    let snapshot = reader.unchecked_transaction().unwrap();
    assert_eq!(count(), 0);

    // Without a deadline: were the writer to wait for this reader, its busy timeout would make the commit fail.
    let moved = change(&mut job, admit(2), at(10));
    store.writer.commit(&[moved]).unwrap();
    assert!(!store.writer.checkpoint().unwrap(), "the log is still read");
    assert_eq!(count(), 0, "the snapshot is what it was");
    drop(snapshot);
    assert_eq!(count(), 2);
    assert!(store.writer.checkpoint().unwrap());
}

#[test]
fn more_questions_than_connections_are_all_answered() {
    let mut store = Fixture::new();
    crowd(&mut store, 250);
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..20 {
            let (readers, sender) = (store.readers.clone(), sender.clone());
            scope.spawn(move || {
                for _ in 0..10 {
                    sender.send(readers.jobs(&JobFilter::default(), 1000).unwrap().len()).unwrap();
                }
            });
        }
    });
    drop(sender);
    assert_eq!(receiver.iter().collect::<Vec<_>>(), [250; 200]);
    let connections = store.readers.pool.lock();
    assert!(connections.opened <= super::MOST);
    assert_eq!(connections.idle.len(), connections.opened);
}

#[test]
fn a_row_this_version_cannot_read_is_an_error_that_says_so() {
    let mut store = Fixture::new();
    let id = store.add(new_job(1)).job.id;
    let sql = "UPDATE job SET reason = '{\"code\": \"from_the_future\"}'";
    rusqlite::Connection::open(store.dir.path().join("muster.db")).unwrap().execute(sql, []).unwrap();
    let error = store.readers.job(&id).unwrap_err();
    assert_eq!(error.class(), Class::Terminal);
    assert_eq!(error.to_string(), "cannot read a job: what is stored is not what this version writes");
    let unread: BTreeSet<_> =
        store.readers.attempts(&id).unwrap().into_iter().map(|row| row.number).collect();
    assert!(unread.is_empty(), "the connection can be used again");
}
