//! What a Python file uses, from its imports.

use muster_model::Framework;

/// How much an import says about how a script wants to be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Weight {
    /// It computes with it.
    Merely,
    /// It has processes talk to each other with it.
    Distributed,
    /// It has them talk with it on top of another framework.
    OnTop,
}

use Framework::{Deepspeed, Horovod, Jax, Mindspore, Mpi, Paddle, Pytorch, Tensorflow};
use Weight::{Distributed, Merely, OnTop};

/// Modules, and what those who import them want. The longest name that fits counts.
const MODULES: &[(&str, Framework, Weight)] = &[
    ("deepspeed", Deepspeed, OnTop),
    ("horovod", Horovod, OnTop),
    ("mpi4py", Mpi, Distributed),
    ("torch", Pytorch, Merely),
    ("torch_npu", Pytorch, Merely),
    ("torchvision", Pytorch, Merely),
    ("torchaudio", Pytorch, Merely),
    ("torch.distributed", Pytorch, Distributed),
    ("torch.nn.parallel.DistributedDataParallel", Pytorch, Distributed),
    ("torch.nn.parallel.distributed", Pytorch, Distributed),
    ("torch.utils.data.distributed", Pytorch, Distributed),
    ("torch.utils.data.DistributedSampler", Pytorch, Distributed),
    ("accelerate", Pytorch, Distributed),
    ("lightning", Pytorch, Distributed),
    ("pytorch_lightning", Pytorch, Distributed),
    ("transformers.Trainer", Pytorch, Distributed),
    ("transformers.Seq2SeqTrainer", Pytorch, Distributed),
    ("trl", Pytorch, Distributed),
    ("fairscale", Pytorch, Distributed),
    ("megatron", Pytorch, Distributed),
    ("colossalai", Pytorch, Distributed),
    ("jax", Jax, Merely),
    ("flax", Jax, Merely),
    ("optax", Jax, Merely),
    ("haiku", Jax, Merely),
    ("equinox", Jax, Merely),
    ("jax.distributed", Jax, Distributed),
    ("jax.experimental.multihost_utils", Jax, Distributed),
    ("tensorflow", Tensorflow, Merely),
    ("tensorflow.distribute", Tensorflow, Distributed),
    ("paddle", Paddle, Merely),
    ("paddlenlp", Paddle, Merely),
    ("paddle.distributed", Paddle, Distributed),
    ("paddle.fluid.incubate.fleet", Paddle, Distributed),
    ("mindspore", Mindspore, Merely),
    ("mindformers", Mindspore, Distributed),
    ("mindspore.communication", Mindspore, Distributed),
];

/// Names in the code of who has imported the framework anyway.
const USES: &[(&str, Framework)] = &[
    ("torch.distributed", Pytorch),
    ("init_process_group", Pytorch),
    ("DistributedDataParallel", Pytorch),
    ("jax.distributed", Jax),
    ("tf.distribute", Tensorflow),
    ("MultiWorkerMirroredStrategy", Tensorflow),
    ("paddle.distributed", Paddle),
    ("fleet.init", Paddle),
];

/// Modules that start Horovod's processes themselves, in a cluster of Spark's or Ray's: horovodrun is not wanted.
const HOROVOD_DRIVERS: &[&str] = &["horovod.spark", "horovod.ray"];

/// Functions that start a process for each device.
const SPAWN: &[&str] = &["mp.spawn", "multiprocessing.spawn", "xmp.spawn"];

/// Something that a file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Says {
    pub framework: Framework,
    pub weight: Weight,
    /// It does without: the import stands in a `try` or behind an `if`.
    pub is_optional: bool,
    /// "imports torch.distributed".
    pub how: String,
}

/// What a file says, and the modules it imports.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub says: Vec<Says>,
    /// Those that may be files beside it, as they are written (`.utils`), in the order of the file.
    pub imports: Vec<String>,
    /// The function by which it starts its processes itself.
    pub spawns: Option<&'static str>,
}

/// Reads a file's text.
pub(super) fn look(text: &str) -> Seen {
    let lines = lines(text);
    let mut seen = Seen::default();
    let mut blocks: Vec<(usize, bool)> = Vec::new();
    for line in &lines {
        let indent = line.len() - line.trim_start().len();
        blocks.retain(|(at, _)| *at < indent);
        let is_optional = blocks.iter().any(|(_, is_optional)| *is_optional);
        let line = line.trim();
        if line.ends_with(':') {
            blocks.push((indent, is_condition(line)));
        }
        for statement in line.split(';') {
            for (module, names) in imported(statement.trim()) {
                seen.add(&module, &names, is_optional);
            }
        }
    }
    for (word, framework) in USES {
        let is_imported = |says: &&Says| says.framework == *framework && says.weight == Merely;
        let Some(found) = seen.says.iter().find(is_imported) else { continue };
        if lines.iter().any(|line| has_word(line, word)) {
            let says = Says { weight: Distributed, how: format!("uses {word}"), ..found.clone() };
            seen.says.push(says);
        }
    }
    let calls = |word: &&&str| lines.iter().any(|line| has_word(line, word) && !line.contains("import"));
    if seen.spawns.is_some() {
        // The functions that the driver sends to its workers import Horovod.
        seen.says.retain(|says| says.framework != Horovod);
    } else {
        seen.spawns = SPAWN.iter().find(calls).copied();
    }
    seen
}

impl Seen {
    fn add(&mut self, module: &str, names: &[String], is_optional: bool) {
        let dot = if module.ends_with('.') { "" } else { "." };
        let mut full = vec![module.to_owned()];
        full.extend(names.iter().map(|name| format!("{module}{dot}{name}")));
        let drives = |driver: &&&str| full.iter().any(|name| begins_with(name, driver));
        if let Some(driver) = HOROVOD_DRIVERS.iter().find(drives).copied() {
            self.spawns = Some(driver);
            return;
        }
        let strongest = full.iter().filter_map(|name| meaning(name)).max_by_key(|(.., weight)| *weight);
        match strongest {
            Some((name, framework, weight)) => {
                self.says.push(Says { framework, weight, is_optional, how: format!("imports {name}") });
            }
            // `from . import model` names a module as well.
            None => self.imports.append(&mut full),
        }
    }
}

/// What a full name is about, by the longest name in the list that it begins with.
fn meaning(name: &str) -> Option<(&'static str, Framework, Weight)> {
    MODULES
        .iter()
        .filter(|(module, ..)| begins_with(name, module))
        .max_by_key(|(module, ..)| module.len())
        .copied()
}

/// Whether a full name is a module's, or of something in it.
fn begins_with(name: &str, module: &str) -> bool {
    name.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// `if` and `try` make what is below them optional, save for the one that every script has.
fn is_condition(line: &str) -> bool {
    let first = line.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
    matches!(first, "try" | "except" | "if" | "elif" | "else") && !line.contains("__name__")
}

/// The modules of a statement, each with the names that are taken from it.
fn imported(statement: &str) -> Vec<(String, Vec<String>)> {
    let name = |part: &str| part.split_whitespace().next().map(str::to_owned);
    if let Some(modules) = statement.strip_prefix("import ") {
        return modules.split(',').filter_map(name).map(|module| (module, Vec::new())).collect();
    }
    let from = statement.strip_prefix("from ").and_then(|rest| rest.split_once(" import"));
    let Some((module, names)) = from else { return Vec::new() };
    let names = names.trim().trim_matches(['(', ')']).split(',').filter_map(name);
    vec![(module.trim().to_owned(), names.filter(|name| name != "*").collect())]
}

fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        // `torch.distributed.x` uses `torch.distributed`, and `dist.init_process_group` what it ends with.
        !before.is_some_and(|c| is_part(c) && c != '.') && !after.is_some_and(|c| is_part(c) && c != '.')
    })
}

/// The logical lines of a file, without comments and the insides of texts.
fn lines(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut open = 0_usize;
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let line = lines.last_mut().expect("there is always one");
        let mut taken = c.len_utf8();
        match c {
            '#' => taken = rest.find('\n').unwrap_or(rest.len()),
            '"' | '\'' => {
                taken = string(rest);
                line.push_str("\"\"");
            }
            '\\' if rest[1..].starts_with('\n') => taken = 2,
            '\n' if open > 0 => line.push(' '),
            '\n' => lines.push(String::new()),
            c => {
                match c {
                    '(' | '[' | '{' => open += 1,
                    ')' | ']' | '}' => open = open.saturating_sub(1),
                    _ => {}
                }
                line.push(c);
            }
        }
        rest = &rest[taken..];
    }
    lines
}

/// How long the text is that begins here, with its quotes.
fn string(rest: &str) -> usize {
    let quote = &rest[..1];
    let triple = quote.repeat(3);
    let end = if rest.starts_with(&triple) { triple.as_str() } else { quote };
    let mut at = end.len();
    while let Some(c) = rest[at..].chars().next() {
        if rest[at..].starts_with(end) {
            return at + end.len();
        }
        match c {
            '\\' => at += 1 + rest[at + 1..].chars().next().map_or(0, char::len_utf8),
            // One that nobody has closed ends with its line.
            '\n' if end.len() == 1 => return at,
            c => at += c.len_utf8(),
        }
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn says(text: &str) -> Vec<(Framework, Weight, bool)> {
        look(text).says.into_iter().map(|it| (it.framework, it.weight, it.is_optional)).collect()
    }

    #[test]
    fn imports_are_found_however_they_are_written() {
        for (line, found) in [
            ("import deepspeed", Some((Deepspeed, OnTop))),
            ("import os, jax.numpy as jnp", Some((Jax, Merely))),
            ("    from mindspore import nn", Some((Mindspore, Merely))),
            ("from mindspore.communication.management import init", Some((Mindspore, Distributed))),
            ("from paddle.io import DataLoader", Some((Paddle, Merely))),
            ("import paddle.distributed as dist", Some((Paddle, Distributed))),
            ("from paddle.distributed import fleet", Some((Paddle, Distributed))),
            ("import horovod.torch as hvd", Some((Horovod, OnTop))),
            ("from torch import distributed as dist", Some((Pytorch, Distributed))),
            (
                "from torch.nn.parallel import (\n    DataParallel,  # not\n    DistributedDataParallel as DDP,\n)",
                Some((Pytorch, Distributed)),
            ),
            ("from torch import nn, \\\n    distributed", Some((Pytorch, Distributed))),
            ("import torch", Some((Pytorch, Merely))),
            ("from transformers import AutoModel, Trainer", Some((Pytorch, Distributed))),
            ("from transformers import AutoTokenizer", None),
            ("from mpi4py import MPI", Some((Mpi, Distributed))),
            ("x = 1; import tensorflow as tf", Some((Tensorflow, Merely))),
            ("# import jax", None),
            ("import jaxtyping", None),
            ("import torchaudio_of_mine", None),
            ("print('import torch')", None),
            ("\"\"\"\nimport torch\n\"\"\"", None),
            ("'''it's\nimport torch '''", None),
        ] {
            let found: Vec<_> = found.into_iter().collect();
            let seen: Vec<_> = says(line).into_iter().map(|(what, weight, _)| (what, weight)).collect();
            assert_eq!(seen, found, "{line}");
        }
    }

    #[test]
    fn what_is_done_with_an_import_makes_it_distributed() {
        assert_eq!(
            says("import torch\ntorch.distributed.init_process_group('nccl')\n").last(),
            Some(&(Pytorch, Distributed, false))
        );
        assert_eq!(
            says("import tensorflow as tf\ns = tf.distribute.MultiWorkerMirroredStrategy()\n").last(),
            Some(&(Tensorflow, Distributed, false))
        );
        assert_eq!(says("import torch\n# torch.distributed\n").last(), Some(&(Pytorch, Merely, false)));
        assert_eq!(says("fleet.init()\n"), []);
    }

    #[test]
    fn functions_that_start_processes_are_seen_where_they_are_called() {
        for (text, expected) in [
            ("import torch.multiprocessing as mp\nmp.spawn(main, nprocs=8)\n", Some("mp.spawn")),
            ("import torch\ntorch.multiprocessing.spawn(main)\n", Some("multiprocessing.spawn")),
            ("import torch.multiprocessing as mp\n# mp.spawn(main)\n", None),
            ("from torch.multiprocessing import spawn\n", None),
            ("print('mp.spawn(x)')\n", None),
            ("import horovod.spark\n", Some("horovod.spark")),
            ("from horovod.ray import RayExecutor\n", Some("horovod.ray")),
            ("from horovod import spark\n", Some("horovod.spark")),
            ("import horovod.torch as hvd\n", None),
        ] {
            assert_eq!(look(text).spawns, expected, "{text}");
        }
        let driver =
            "import horovod.spark\ndef train():\n    import horovod.torch as hvd\n    import torch\n";
        assert_eq!(says(driver), [(Pytorch, Merely, false)]);
    }

    #[test]
    fn an_import_that_may_fail_is_optional() {
        let text = "try:\n    import deepspeed\nexcept ImportError:\n    deepspeed = None\nimport torch\n";
        assert_eq!(says(text), [(Deepspeed, OnTop, true), (Pytorch, Merely, false)]);
        assert_eq!(says("if args.jax:\n    import jax\n"), [(Jax, Merely, true)]);
        assert_eq!(says("if __name__ == '__main__':\n    import jax\n"), [(Jax, Merely, false)]);
        assert_eq!(says("def main():\n    import jax\n"), [(Jax, Merely, false)]);
    }

    proptest! {
        #[test]
        fn any_text_can_be_looked_at(text in any::<String>(), dense in "[a'\"#\\\\\n(){}:; ]{0,200}") {
            look(&text);
            look(&format!("import torch\n{dense}"));
        }
    }
}
