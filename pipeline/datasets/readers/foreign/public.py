"""Advice for names of public datasets that do not come with Millrace."""

from .....storage.errors import closest

OGB = ("ogbn-arxiv", "ogbn-products", "ogbn-proteins", "ogbn-papers100M", "ogbn-mag")
"""The node-property datasets of the Open Graph Benchmark."""

IN_PYG = {
    "cora": "Planetoid('data', 'Cora')",
    "citeseer": "Planetoid('data', 'CiteSeer')",
    "pubmed": "Planetoid('data', 'PubMed')",
    "reddit": "Reddit('data/reddit')",
    "reddit2": "Reddit2('data/reddit2')",
    "flickr": "Flickr('data/flickr')",
    "yelp": "Yelp('data/yelp')",
    "amazonproducts": "AmazonProducts('data/amazonproducts')",
    "amazon-computers": "Amazon('data', 'Computers')",
    "amazon-photo": "Amazon('data', 'Photo')",
    "coauthor-cs": "Coauthor('data', 'CS')",
    "coauthor-physics": "Coauthor('data', 'Physics')",
    "wikics": "WikiCS('data/wikics')",
    "karateclub": "KarateClub()",
}
"""Names of public datasets in `torch_geometric.datasets`."""

SHORT = {"computers": "amazon-computers", "photo": "amazon-photo", "physics": "coauthor-physics"}
SHORT |= {name.removeprefix("ogbn-").lower(): name for name in OGB}


def how_to_get(name: str) -> str | None:
    """A sentence on how to get a public dataset of this name; None if the name is unknown."""
    word = name.lower().replace("_", "-")
    word = SHORT.get(word, word)
    if word in OGB:
        return f"the dataset '{name}' is from OGB: give {word}"
    if (call := IN_PYG.get(word)) is None:
        return None
    return (
        f"the dataset '{name}' does not come with Millrace; store it once, in Python, from PyG:\n"
        f"  from torch_geometric.datasets import {call.partition('(')[0]}; "
        f"mr.write_dataset('{word}-store', mr.from_pyg({call}[0], name='{word}'))\n"
        f"then give {word}-store as the dataset"
    )


def near_ogb(name: str) -> str:
    """An error message for an OGB name that OGB does not know."""
    found = closest(name, OGB)
    return f"OGB has no node dataset '{name}'; " + (
        f"did you mean '{found}'?" if found else f"expected one of {', '.join(OGB)}"
    )
