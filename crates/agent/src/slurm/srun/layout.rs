//! Which tasks run on which nodes.

use muster_model::{hostlist, slurm};

use super::options::Options;

/// The tasks of a step on its nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    /// For each node of the step: which of the job's it is, and the ranks of its tasks.
    pub nodes: Vec<(usize, Vec<u32>)>,
    pub tasks: u32,
}

/// What a step asks for, before its nodes are chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub tasks: u32,
    pub nodes: u32,
    /// The nodes that it may have, the first ones first.
    pub among: Vec<usize>,
    /// A remark that Slurm makes too.
    pub note: Option<String>,
}

/// What the nodes of the job are called: their names, and their addresses, which programs are told where names lead nowhere.
#[derive(Debug, Clone)]
pub(super) struct Names<'a> {
    pub names: &'a [String],
    pub addresses: Vec<String>,
}

impl Names<'_> {
    fn place(&self, host: &str) -> Option<usize> {
        let is_host = |name: &String| name == host;
        self.names.iter().position(is_host).or_else(|| self.addresses.iter().position(is_host))
    }
}

/// What the script has, where the options say nothing.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usual {
    pub tasks: Option<u32>,
    pub tasks_per_node: Option<u32>,
}

/// Decides how many tasks on how many of which nodes.
pub(super) fn wanted(options: &Options, names: &Names, usual: Usual) -> Result<Wanted, String> {
    let all = names.names.len() as u32;
    let mut among = among(options, names)?;
    let given_nodes = options.nodes.or(options.nodelist.as_ref().map(|_| among.len() as u32));
    let per_node = options.ntasks_per_node;
    let mut nodes = given_nodes.unwrap_or(match (options.ntasks, per_node) {
        (Some(tasks), Some(per_node)) => tasks.div_ceil(per_node),
        _ => all.min(among.len() as u32),
    });
    let tasks = options.ntasks.unwrap_or_else(|| {
        if let Some(per_node) = per_node {
            return nodes.saturating_mul(per_node);
        }
        match (usual.tasks, usual.tasks_per_node) {
            (Some(tasks), _) if nodes == all => tasks,
            (_, Some(per_node)) => nodes.saturating_mul(per_node),
            // All of them, on fewer nodes.
            (Some(tasks), None) => tasks,
            (None, None) => nodes,
        }
    });
    let mut note = None;
    if tasks < nodes {
        if given_nodes.is_some() {
            note = Some(format!(
                "Warning: can't run {tasks} processes on {nodes} nodes, setting nnodes to {tasks}"
            ));
        }
        nodes = tasks;
    }
    if nodes as usize > among.len() {
        return Err(format!("it asks for {nodes} nodes, and there are {} for it", among.len()));
    }
    if options.nodelist.is_some() && nodes as usize == among.len() {
        // Those that are named are those that are meant.
        among.truncate(nodes as usize);
    }
    Ok(Wanted { tasks, nodes, among, note })
}

fn among(options: &Options, names: &Names) -> Result<Vec<usize>, String> {
    let listed = |list: &str| -> Result<Vec<usize>, String> {
        let hosts = hostlist::parse(list).map_err(|error| format!("`{list}`: {error}"))?;
        let place = |host: &String| {
            let all = || hostlist::print(names.names);
            names.place(host).ok_or_else(|| format!("{host} is not a node of this job; it has {}", all()))
        };
        hosts.iter().map(place).collect()
    };
    let mut among = match &options.nodelist {
        Some(list) => listed(list)?,
        None => (options.relative.min(names.names.len())..names.names.len()).collect(),
    };
    // In the order of the job's nodes, each once, as Slurm has them.
    among.sort_unstable();
    among.dedup();
    if let Some(list) = &options.exclude {
        let not = listed(list)?;
        among.retain(|node| !not.contains(node));
    }
    Ok(among)
}

impl Layout {
    /// Numbers the tasks on these nodes.
    pub fn of(tasks: u32, nodes: &[usize], is_cyclic: bool) -> Layout {
        let counts = slurm::spread(tasks, nodes.len() as u32);
        let mut ranks: Vec<Vec<u32>> = vec![Vec::new(); nodes.len()];
        if is_cyclic {
            let count = nodes.len() as u32;
            (0..tasks).for_each(|rank| ranks[(rank % count) as usize].push(rank));
        } else {
            let mut next = 0;
            for (own, count) in ranks.iter_mut().zip(&counts) {
                own.extend(next..next + count);
                next += count;
            }
        }
        Layout { nodes: nodes.iter().copied().zip(ranks).collect(), tasks }
    }

    /// How many tasks each node has.
    pub fn counts(&self) -> Vec<u32> {
        self.nodes.iter().map(|(_, ranks)| ranks.len() as u32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(line: &str, nodes: usize, usual: Usual) -> Result<(Layout, Option<String>), String> {
        let words: Vec<String> = format!("{line} x").split_whitespace().map(str::to_owned).collect();
        let options = Options::read(&words, &|_| None)?;
        let names: Vec<String> = (1..=nodes).map(|node| format!("n{node}")).collect();
        let addresses = (1..=nodes).map(|node| format!("10.0.0.{node}")).collect();
        let wanted = wanted(&options, &Names { names: &names, addresses }, usual)?;
        let chosen = &wanted.among[..wanted.nodes as usize];
        Ok((Layout::of(wanted.tasks, chosen, options.cyclic), wanted.note))
    }

    /// As a real Slurm 22.05 starts them in a job of two nodes with two tasks each, where it starts them.
    #[test]
    fn tasks_are_placed_as_slurm_places_them() {
        let usual = Usual { tasks: Some(4), tasks_per_node: Some(2) };
        for (line, expected) in [
            ("", "0:0,1 1:2,3"),
            ("-n1", "0:0"),
            ("-n3", "0:0,1 1:2"),
            ("-n3 -m cyclic", "0:0,2 1:1"),
            ("-n2", "0:0 1:1"),
            ("-w n2 -N1 -n1", "1:0"),
            ("-w 10.0.0.2 -N1 -n1", "1:0"),
            ("-N1", "0:0,1"),
            ("-N1 -n1 -r1", "1:0"),
            ("-N2 --ntasks-per-node=1", "0:0 1:1"),
            ("--ntasks-per-node=1", "0:0 1:1"),
            ("-n4 --ntasks-per-node=4", "0:0,1,2,3"),
            ("-x n1 -n1", "1:0"),
            ("-w n[1-2] -n2", "0:0 1:1"),
            ("-N2-2 -n12", "0:0,1,2,3,4,5 1:6,7,8,9,10,11"),
        ] {
            let (layout, _) = plan(line, 2, usual).unwrap();
            let shown = |(node, ranks): &(usize, Vec<u32>)| {
                let ranks: Vec<String> = ranks.iter().map(u32::to_string).collect();
                format!("{node}:{}", ranks.join(","))
            };
            assert_eq!(layout.nodes.iter().map(shown).collect::<Vec<_>>().join(" "), expected, "{line}");
        }
    }

    #[test]
    fn on_fewer_nodes_there_are_as_many_tasks() {
        let usual = Usual { tasks: Some(4), tasks_per_node: None };
        assert_eq!(plan("-N1", 2, usual).unwrap().0.counts(), [4]);
        assert_eq!(plan("-N1", 2, Usual::default()).unwrap().0.counts(), [1]);
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let usual = Usual::default();
        assert!(plan("-N1 -n0", 2, usual).unwrap_err().contains("`0`"));
        assert!(plan("-N3", 2, usual).unwrap_err().contains("asks for 3 nodes, and there are 2"));
        assert!(plan("-w n9", 2, usual).unwrap_err().contains("n9 is not a node of this job; it has n[1-2]"));
        let (_, note) = plan("-N2 -n1", 2, usual).unwrap();
        assert_eq!(note.as_deref(), Some("Warning: can't run 1 processes on 2 nodes, setting nnodes to 1"));
        assert_eq!(plan("-n1", 2, usual).unwrap().1, None);
    }
}
