//! What Slurm's users write, read as Slurm reads it: options, quantities, how tasks are spread over nodes.
//!
//! Pure, and without any knowledge of jobs: `#SBATCH` lines, the `srun` inside a task and the engine that speaks to a real
//! Slurm have these words in common.

pub mod option;
pub mod quantity;

/// How so many tasks are spread over so many nodes: evenly, the first ones have the rest.
pub fn spread(tasks: u32, nodes: u32) -> Vec<u32> {
    let nodes = nodes.max(1);
    (0..nodes).map(|node| tasks / nodes + u32::from(node < tasks % nodes)).collect()
}

/// `2(x3),1`: how Slurm writes a number for each node.
pub fn counts(numbers: &[u32]) -> String {
    let mut runs: Vec<(u32, usize)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((last, times)) if last == number => *times += 1,
            _ => runs.push((*number, 1)),
        }
    }
    let one = |(number, times): (u32, usize)| {
        if times == 1 { number.to_string() } else { format!("{number}(x{times})") }
    };
    runs.into_iter().map(one).collect::<Vec<_>>().join(",")
}

/// The other way round; none where that is not what it says.
pub fn read_counts(text: &str) -> Option<Vec<u32>> {
    /// More nodes than anybody has; the text is a user's to set.
    const MOST: usize = 1 << 17;
    let mut numbers = Vec::new();
    for run in text.split(',') {
        let (number, times) = match run.split_once("(x") {
            Some((number, times)) => (number, times.strip_suffix(')')?.parse().ok()?),
            None => (run, 1),
        };
        if numbers.len() + times > MOST {
            return None;
        }
        numbers.extend(std::iter::repeat_n(number.parse::<u32>().ok()?, times));
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_spread_evenly_and_the_first_nodes_have_the_rest() {
        for (tasks, nodes, expected) in
            [(8, 2, "4(x2)"), (7, 3, "3,2(x2)"), (1, 1, "1"), (3, 4, "1(x3),0"), (2, 0, "2")]
        {
            assert_eq!(counts(&spread(tasks, nodes)), expected);
        }
    }

    #[test]
    fn numbers_of_nodes_are_read_as_they_are_written() {
        for numbers in [vec![2, 2, 2, 1], vec![1], vec![4, 1, 1, 4]] {
            assert_eq!(read_counts(&counts(&numbers)), Some(numbers));
        }
        for text in ["", "x", "2(x", "2(x9999999)", "2(3)"] {
            assert_eq!(read_counts(text), None, "{text}");
        }
    }
}
