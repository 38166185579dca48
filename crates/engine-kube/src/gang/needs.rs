//! What one pod of a gang asks of a node, and which nodes it may go to.
//!
//! All pods of a gang come from one template, so a gang is a number of equal pods. What is judged here is what the scheduler
//! refuses a node for by itself: amounts, labels, taints. Other pods nearby, spreading, ports and volumes are not judged.

use std::collections::BTreeMap;

/// How much of everything: CPU in thousandths, all else in whole units.
pub(crate) type Amounts = BTreeMap<String, i64>;

/// What one pod asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Needs {
    /// How much of what; a pod also needs one of a node's `pods`.
    pub requests: Amounts,
    /// Labels that its node must have.
    pub selector: BTreeMap<String, String>,
    /// Its node must satisfy one of these. None: any node will do.
    pub terms: Option<Vec<Term>>,
    /// Taints that do not keep it away.
    pub tolerations: Vec<Toleration>,
    /// It may push out what counts for less than it does.
    pub preempts: bool,
    /// How much it counts, compared with other pods.
    pub priority: i32,
}

/// Everything that a node must satisfy at once.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Term {
    /// About its labels.
    pub labels: Vec<Demand>,
    /// About its fields, of which Kubernetes has one: its name.
    pub fields: Vec<Demand>,
}

/// One thing that a label must be.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Demand {
    /// The label.
    pub key: String,
    /// What it must be, as Kubernetes writes it: `In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt`, `Lt`.
    pub operator: String,
    /// Compared with what.
    pub values: Vec<String>,
}

/// What keeps pods away from a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Taint {
    /// Its name.
    pub key: String,
    /// Its value, or nothing.
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

/// A taint that does not matter to a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Toleration {
    /// Which; nothing with `Exists` is every one.
    pub key: String,
    /// `Equal` unless it says `Exists`.
    pub exists: bool,
    /// Compared with the taint's.
    pub value: String,
    /// Only this effect; nothing is each of them.
    pub effect: String,
}

/// A node, as far as it matters for who may go there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Node {
    /// What it is labelled.
    pub labels: BTreeMap<String, String>,
    /// What keeps pods away; a node that is not ready or cordoned has one for that.
    pub taints: Vec<Taint>,
    /// What it has for pods.
    pub allocatable: Amounts,
}

/// Why a node is out of the question for a pod, however empty it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// A label is missing or another.
    Label,
    /// A taint is not tolerated.
    Taint,
}

impl Needs {
    /// Why the node is out of the question whatever it has; nothing if it is not.
    pub(crate) fn obstacle(&self, name: &str, node: &Node) -> Option<Obstacle> {
        let has = |(key, value): (&String, &String)| node.labels.get(key) == Some(value);
        let is_chosen =
            self.terms.as_ref().is_none_or(|terms| terms.iter().any(|term| term.holds(name, node)));
        if !self.selector.iter().all(has) || !is_chosen {
            return Some(Obstacle::Label);
        }
        let keeps_away = |taint: &&Taint| taint.effect == "NoSchedule" || taint.effect == "NoExecute";
        let is_tolerated = |taint: &Taint| self.tolerations.iter().any(|toleration| toleration.covers(taint));
        let is_kept_away = node.taints.iter().filter(keeps_away).any(|taint| !is_tolerated(taint));
        is_kept_away.then_some(Obstacle::Taint)
    }
}

impl Term {
    /// A term that demands nothing chooses nothing: so Kubernetes has it.
    fn holds(&self, name: &str, node: &Node) -> bool {
        let mut labels = self.labels.iter();
        let mut fields = self.fields.iter();
        (!self.labels.is_empty() || !self.fields.is_empty())
            && labels.all(|demand| demand.holds(node.labels.get(&demand.key).map(String::as_str)))
            && fields.all(|demand| demand.key == "metadata.name" && demand.holds(Some(name)))
    }
}

impl Demand {
    fn holds(&self, label: Option<&str>) -> bool {
        let is_among = || label.is_some_and(|label| self.values.iter().any(|value| value == label));
        let number = |text: Option<&str>| text.and_then(|text| text.parse::<i64>().ok());
        let numbers = || number(label).zip(number(self.values.first().map(String::as_str)));
        match self.operator.as_str() {
            "In" => is_among(),
            "NotIn" => !is_among(),
            "Exists" => label.is_some(),
            "DoesNotExist" => label.is_none(),
            "Gt" => numbers().is_some_and(|(label, value)| label > value),
            "Lt" => numbers().is_some_and(|(label, value)| label < value),
            // An operator of a later version: the scheduler knows, and who opens by mistake takes back.
            _ => true,
        }
    }
}

impl Toleration {
    fn covers(&self, taint: &Taint) -> bool {
        let is_key = if self.key.is_empty() { self.exists } else { self.key == taint.key };
        is_key
            && (self.effect.is_empty() || self.effect == taint.effect)
            && (self.exists || self.value == taint.value)
    }
}
