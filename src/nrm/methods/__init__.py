"""The classic methods, each as the question that it asks to a measure; none has mathematics of its own.

Rules, biases and target are the measure's, the choice of neurons is the question's. What is explained, the paper's
output neuron, is the measure's target, so that a joint relevance with it and one given it are the same.

* :func:`lrp`: how much does every input count?
* :func:`deeplift`: how much does every input contribute to the difference from a reference?
* :func:`conrel`: how much does a concept (a neuron, a set of neurons) count?
* :func:`crp`: where in the input is a concept, or several in one or more layers?
* :func:`relmax`: in which samples does a concept, or a pair of concepts, count most?
* :func:`gnn_lrp`: how much flows along a walk over the nodes of a graph?
* :func:`subgraph`: how much flows through these nodes only, in every layer?
* :func:`symbxai`: how much flows through this feature *and* that one, but *not* through a third?
* :func:`additive`: how much do neurons anywhere in the network count, each with its share of every walk?
"""

from nrm.methods.classics import additive, conrel, crp, deeplift, gnn_lrp, lrp, subgraph, symbxai
from nrm.methods.relmax import Maxima, relmax

__all__ = ["Maxima", "additive", "conrel", "crp", "deeplift", "gnn_lrp", "lrp", "relmax", "subgraph", "symbxai"]
