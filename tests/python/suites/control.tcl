# Fails if the module is loaded: a comparison that does not notice it compares nothing.
start_server {tags {"external:skip"}} {
    test {no module is loaded} {
        assert_no_match {*redislock*} [r module list]
    }
}
