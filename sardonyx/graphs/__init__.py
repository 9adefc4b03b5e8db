"""Graph algorithms in numpy: from tables of edges to a table with a row for each vertex.

An algorithm runs in *supersteps* (Pregel: Malewicz et al., 2010). In each, vertices send messages along their edges, and the
messages to one vertex are combined into one. Edges lie in shards, by their source. All that is combined is exact: sums of
whole numbers, least and greatest values, counts. So the number of shards, the order of the edges, and how they were cut into
tables change no bit of a result.
"""
