//! A cluster that holds jobs to the memory they asked for, with the kernel's control groups as a site does.

use muster_testkit::Slurm;

use super::Site;
use crate::attempts;

/// Takes more than a job here may have, which the kernel lets nobody do.
pub(super) const EAT: &str = "exec python3 -c 'bytearray(600 << 20)'";
/// Has the kernel choose everybody else in the same group first: the agent and the supervisor of this task.
const OTHERS_FIRST: &str = "group=/sys/fs/cgroup/memory$(grep :memory: /proc/self/cgroup | cut -d: -f3); \
    for pid in $(cat $group/cgroup.procs); do test $pid = $$ || echo 1000 > /proc/$pid/oom_score_adj; done";

impl Site {
    fn submit_hungry(&self, nodes: &str, line: &str) -> String {
        self.submit_line(&["-N", nodes, "--memory", "200MB"], line)
    }

    /// How often the job's events say that a task ended for this reason.
    fn ends(&self, job: &str, code: &str) -> usize {
        let events = self.home.get(&format!("/api/v1/jobs/{job}/events")).text();
        events.lines().filter(|line| line.contains("\"task_ended\"") && line.contains(code)).count()
    }
}

#[test]
fn a_task_that_takes_too_much_memory_ends_its_gang_once_and_says_so() {
    let site = Site::on(Slurm::start_limiting_memory());
    for nodes in ["1", "2"] {
        // The last rank is the hungry one; the other waits for it.
        let line = format!("echo begun; test $RANK = $((WORLD_SIZE - 1)) || exec sleep 1000; {EAT}");
        let job = site.submit_hungry(nodes, &line);
        let shown = site.end_of(&job, 137);
        assert_eq!(shown["reason"]["code"], "out_of_memory", "{shown}");
        assert_eq!((attempts(&shown).len(), site.ends(&job, "out_of_memory")), (1, 1), "{shown}");
        assert_eq!(site.home.ok(["logs", &job]).matches("begun").count().to_string(), nodes);
        site.wait_for_nothing_left();
    }
}

#[test]
fn an_agent_that_dies_with_its_task_of_hunger_leaves_it_to_slurm_to_say_so() {
    let site = Site::on(Slurm::start_limiting_memory());
    let job = site.submit_hungry("1", &format!("echo begun; {OTHERS_FIRST}; {EAT}"));
    let shown = site.end_of(&job, 137);
    assert_eq!(shown["reason"]["code"], "out_of_memory", "{shown}");
    assert_eq!((attempts(&shown).len(), site.ends(&job, "out_of_memory")), (1, 1), "{shown}");
    assert_eq!(site.home.ok(["logs", &job]), "begun\n");
    site.wait_for_nothing_left();
}
